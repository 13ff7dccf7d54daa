"""A sandbox provider whose turns wait to be let through, so that a test decides when and how each rollout goes on.

It is a provider like any other (there is nothing inside its sandboxes); the engine around it is the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.idle_sandbox import REWARD_FILE, IdleProvider, IdleSandbox

from benchflow.checkpoints.checkpoint_capture import FENCE
from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Capabilities, SandboxExecResult, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.errors import SandboxError
from benchflow.planes.reward.inputs import ARTIFACTS_DIRECTORY


class FakeProvider(IdleProvider):
    """held: turns wait until they are released; holds_verifiers: verifiers do, too.

    faults: per task, what its turns raise, one after another.

    stubborn_start: while it is set to an event, sandboxes come up once that is set, whoever cancels meanwhile.
    elsewhere: per task, or rollout by its workflow's id, the queues that its sandboxes are said to be on, one after
    another, instead of this host's.
    holds_artifacts: artifacts never come out of a sandbox; collecting: how often one was asked for them.
    images: the fences of the snapshots that were taken or unpacked, by their names.
    reward: what verifiers write. drawn: what the turns in each sandbox have left there, one number each, with those
    that the state had which it began from; with `draws` the last of them is the reward. turns: how often each rollout
    had one; verified: how often its verifier was started; most_open: sandboxes at a time. frozen: those that stand
    still; running: how many of the others there were, each time that one of them began to run.
    """

    name = "hall"

    def __init__(self) -> None:
        self.held = False
        self.holds_verifiers = False
        self.faults: dict[str, list[Exception]] = {}
        self.elsewhere: dict[str, list[str]] = {}
        self.reward = b"1.0"
        self.draws = False
        self.drawn: dict[str, tuple[float, ...]] = {}
        self.stubborn_start: asyncio.Event | None = None
        self.starting = 0
        self.start_error: SandboxError | None = None
        self.holds_artifacts = False
        self.collecting = 0
        self.turns: Counter[str] = Counter()
        self.verified: Counter[str] = Counter()
        self.order: list[str] = []
        self.open: set[str] = set()
        self.most_open = 0
        self.frozen: set[str] = set()
        self.running: list[int] = []
        self.removed: Counter[str] = Counter()
        self.images: dict[str, str] = {}
        self._released: dict[str, asyncio.Event] = {}
        self._rollouts: dict[str, SandboxSpec] = {}
        self._drawn_in: dict[str, tuple[float, ...]] = {}

    @property
    def in_turn(self) -> list[str]:
        """The rollouts whose agent, or held verifier, works now, by workflow id."""
        return sorted(rollout for rollout, event in self._released.items() if not event.is_set())

    def release(self, *rollouts: str) -> None:
        """Let turns end: of these rollouts, of all that wait now when none is named."""
        for rollout in rollouts or self.in_turn:
            self._released[rollout].set()

    def release_all(self) -> None:
        """Let every turn and verifier end, also those to come."""
        self.held = self.holds_verifiers = False
        self.release(*self.in_turn)

    def capabilities(self) -> Capabilities:
        return super().capabilities().model_copy(update={"snapshot": True, "portable": True, "freeze": True})

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        return await store.put_bytes(self.images[image.reference].encode())

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        self.images[name] = (await store.read(pack)).decode()
        return ImageRef(reference=name, workdir="/app")

    async def remove_image(self, image: ImageRef) -> None:
        self.images.pop(image.reference, None)

    async def remove_snapshots(self, prefix: str) -> None:
        self.images = {name: fence for name, fence in self.images.items() if not name.startswith(prefix)}

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> IdleSandbox:
        if self.start_error is not None:
            raise self.start_error
        if self.stubborn_start is not None:
            self.starting += 1
            await _despite_cancellation(self.stubborn_start)
        self._rollouts[spec.name] = spec
        self.drawn[spec.name] = self._drawn_in.get(spec.image.reference, ())
        self.open.add(spec.name)
        self.most_open = max(self.most_open, len(self.open))
        self.note_running()
        labels = spec.labels
        if queues := self.elsewhere.get(labels["benchflow.task"]) or self.elsewhere.get(labels["benchflow.workflow"]):
            queue = queues.pop(0)
            host_id = queue.rpartition("-")[2]
        started = await super().start(spec, host_id=host_id, queue=queue, generation=generation)
        return await self.attach(started.ref)

    async def attach(self, ref: SandboxRef) -> IdleSandbox:
        return _FakeSandbox(ref, self, self._rollouts[ref.name])

    async def remove(self, name: str) -> None:
        self.open.discard(name)
        self.frozen.discard(name)
        self.removed[name] += 1

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        specs = [self._rollouts[name] for name in sorted(self.open)]
        return [
            OwnedSandbox(name=spec.name, handle=spec.name, labels=spec.labels)
            for spec in specs
            if spec.labels["benchflow.stack"] == stack_id
        ]

    def note_running(self) -> None:
        """Count the sandboxes that run."""
        self.running.append(len(self.open - self.frozen))

    def reward_in(self, sandbox: str) -> bytes:
        """What a verifier writes in this sandbox now."""
        return str(self.drawn[sandbox][-1]).encode() if self.draws else self.reward

    async def turn(self, labels: dict[str, str]) -> None:
        rollout = labels["benchflow.workflow"]
        self.turns[rollout] += 1
        self.order.append(rollout)
        if self.held:
            await self._hold(rollout)
        if faults := self.faults.get(labels["benchflow.task"]):
            raise faults.pop(0)

    async def verify(self, rollout: str) -> None:
        self.verified[rollout] += 1
        if self.holds_verifiers:
            await self._hold(rollout)

    async def _hold(self, rollout: str) -> None:
        event = self._released[rollout] = asyncio.Event()
        try:
            await event.wait()
        finally:
            event.set()


async def _despite_cancellation(event: asyncio.Event) -> None:
    while not event.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await event.wait()


class _FakeSandbox(IdleSandbox):
    def __init__(self, ref: SandboxRef, provider: FakeProvider, spec: SandboxSpec) -> None:
        super().__init__(ref)
        self._provider = provider
        self._labels = spec.labels
        self._fence = provider.images.get(spec.image.reference, "")

    async def control(
        self, script: str, *args: str, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> SandboxExecResult:
        if FENCE in script and args[0]:
            self._fence = args[0]
        return await super().control(script, *args, sink=sink, timeout=timeout)

    async def snapshot(self, name: str) -> ImageRef:
        self._provider.images[name] = self._fence
        self._provider._drawn_in[name] = self._provider.drawn[self.ref.name]
        return ImageRef(reference=name, workdir="/app")

    async def freeze(self) -> None:
        self._provider.frozen.add(self.ref.name)

    async def thaw(self) -> None:
        self._provider.frozen.discard(self.ref.name)
        self._provider.note_running()

    async def is_frozen(self) -> bool:
        return self.ref.name in self._provider.frozen

    async def exec_once(self, key: str, cmd: Sequence[str], **options: Any) -> SandboxExecResult:
        assert self.ref.name not in self._provider.frozen
        if key.startswith("turn-"):
            await self._provider.turn(self._labels)
            self._provider.drawn[self.ref.name] += (random.randrange(1, 2**16) / 2**16,)
        if key.startswith("verify-"):
            await self._provider.verify(self._labels["benchflow.workflow"])
        return await super().exec_once(key, cmd, **options)

    async def read_bytes(self, path: str) -> bytes:
        if path == FENCE:
            return self._fence.encode()
        return self._provider.reward_in(self.ref.name) if path == REWARD_FILE else await super().read_bytes(path)

    async def download(self, source: str, target: Any, *, exclude: Sequence[str] = ()) -> bool:
        if self._provider.holds_artifacts and source == ARTIFACTS_DIRECTORY:
            self._provider.collecting += 1
            await asyncio.Event().wait()
        found = await super().download(source, target, exclude=exclude)
        for file in target.glob("reward.txt") if found and target.is_dir() else ():
            file.write_bytes(self._provider.reward_in(self.ref.name))
        return found

    async def stop(self) -> None:
        await self._provider.remove(self.ref.name)
