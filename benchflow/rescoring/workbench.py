"""The world of a stored rollout as the agent left it: a new sandbox with the workspace that was kept, if one asks.

That the workspace is all that a verifier reads is not taken on trust: the verifier of the first scoring has to say
there what it said at first. Where no workspace was kept, nothing can be run; but what the verifier wrote at first is
read again, as long as the task is still the same.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from benchflow.contracts.reward import VerifyResult, Workbench
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.errors import BenchFlowError, SandboxError, UntrustedJobError, VerifierError
from benchflow.paths import StatePaths
from benchflow.planes.reward.placement import put_work, put_workspace
from benchflow.planes.reward.workbench import SandboxWorkbench
from benchflow.rescoring.place import UNPINNED, Place
from benchflow.rescoring.record import changes
from benchflow.rescoring.sandboxes import OWNER, Room, remove_left, started
from benchflow.rescoring.stored import read_own_rollout, read_rollout
from benchflow.rescoring.tasks import FoundTask, Tasks
from benchflow.secrets import Secrets

_OUTSIDE = (
    "have the task keep what is scored in its workspace, or run its rollouts again; "
    "--trust-workspace scores without this check"
)


@asynccontextmanager
async def stored_workbench(
    directory: Path, *, step: int | None = None, trust: bool = False
) -> AsyncIterator[Workbench]:
    """The workbench of a stored rollout, after its last step; its sandbox is removed at the end, if there was one.

    directory: `<jobs_dir>/<job>/<task>__<id>`. step: the index of another one, that it has run. Raises
    `JobNotFoundError` where no rollout has ended there. What is missing for running something is said by
    `VerifierError` when it is asked for, and by `UntrustedJobError` that its job is somebody else's. trust: whoever
    submitted that, run it.
    """
    rollout, refusal = read_rollout(directory), None
    try:
        rollout = read_own_rollout(directory, trust=trust)
    except UntrustedJobError as error:
        # Scorers that only read ask for nothing that its configuration names.
        refusal = error
    steps = [one for one in rollout.result.steps if step in (None, one.step.index)]
    if not steps:
        raise VerifierError("no step of this rollout was finished, so there is nothing to score", file=str(directory))
    tasks = Tasks()

    async def find() -> FoundTask:
        if refusal is not None:
            raise refusal
        return await tasks.find(rollout.spec.task)

    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as logs:
        last, secrets = steps[-1], Secrets(os.environ, "here")
        async with opened(Place(rollout, last, find, find, Path(logs), secrets, StatePaths.default())) as bench:
            yield bench


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Workbench]:
    """The workbench of a step; what was started for it is removed at the end."""
    async with AsyncExitStack() as stack:
        yield _StoredWorkbench(place, stack)


@asynccontextmanager
async def _as_left(place: Place, found: FoundTask, room: Room) -> AsyncIterator[Sandbox]:
    """A new sandbox of a task with the workspace that was kept. room: is told what it was before that, if it is one."""
    kept = place.workspace
    if kept is None:
        raise place.nothing_kept()
    setting = place.setting(found)
    await remove_left(setting.provider)
    try:
        async with started(setting) as sandbox:
            if setting.has_clean_room:
                room.before = await setting.blueprint.room_baseline(sandbox, setting.config.user)
                await put_work(sandbox, kept, kept.parent)
            else:
                await put_workspace(sandbox, kept)
            yield sandbox
    finally:
        with suppress(SandboxError):
            await setting.provider.sweep(OWNER)


class _StoredWorkbench:
    """A `Workbench` that finds its task, and starts its sandbox, when it is first asked for what needs them."""

    def __init__(self, place: Place, stack: AsyncExitStack) -> None:
        self._place, self._stack = place, stack
        self._making, self._testing = asyncio.Lock(), asyncio.Lock()
        self._bench: SandboxWorkbench | None = None
        self._said: VerifyResult | BenchFlowError | None = None

    async def tests(self) -> VerifyResult:
        """What the task's own verifier says: run again, or, without a workspace, read again."""
        async with self._testing:
            if self._said is None:
                try:
                    self._said = await self._test()
                except BenchFlowError as error:
                    self._said = error
        if isinstance(self._said, BenchFlowError):
            raise self._said
        return self._said

    async def _test(self) -> VerifyResult:
        place = self._place
        found = await place.task()
        if place.workspace is None:
            if not place.has_first or not place.is_same(found):
                raise place.nothing_kept(found)
            place.ran = "stored"
            return await asyncio.to_thread(place.first, found)
        if place.has_first and not place.is_trusted:
            if place.is_same(found):
                return await self._again(found)
            await _check_workspace(place)
        place.ran = "ran"
        return await (await self._made()).tests()

    async def _again(self, found: FoundTask) -> VerifyResult:
        """What the very verifier of the first scoring says; where that is something else now, the first word counts."""
        place = self._place
        first = await asyncio.to_thread(place.first, found)
        try:
            result = await (await self._made()).tests()
            if result.rewards == first.rewards:
                place.ran = "ran"
                return result
            differs = changes(first.rewards, result.rewards)
            said = ", ".join(f"{name} {change.before} → {change.after}" for name, change in differs.items())
        except VerifierError as error:
            said = f"it fails, {error.message}"
        place.ran = "stored"
        place.warnings.append(
            f"what the verifier wrote at first counts: run again with the kept workspace, {said}: it reads more than "
            "the workspace, or does not always say the same"
        )
        return first

    async def run(
        self,
        key: str,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float = 60.0,
    ) -> SandboxExecResult:
        bench = await self._made()
        return await bench.run(key, command, files=files, env=env, timeout_sec=timeout_sec)

    async def read(self, path: str, *, limit: int) -> bytes | None:
        return await (await self._made()).read(path, limit=limit)

    async def _made(self) -> SandboxWorkbench:
        async with self._making:
            if self._bench is None:
                place = self._place
                found = await place.task()
                room = Room()
                verifier = place.verifier(found, place.setting(found), room)
                if place.baseline is None and verifier.config.hardening.pin_environment:
                    place.warnings.append(UNPINNED)

                async def open() -> Sandbox:
                    return await self._stack.enter_async_context(_as_left(place, found, room))

                self._bench = SandboxWorkbench(open, verifier, place.logs)
        return self._bench


async def _check_workspace(place: Place) -> None:
    """Raise `VerifierError` unless the verifier of the first scoring gives the kept workspace what it gave at first."""
    recorded = await place.recorded()
    first = await asyncio.to_thread(place.first, recorded)
    room = Room()
    verifier = place.verifier(recorded, place.setting(recorded), room)
    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as logs:
        try:
            async with _as_left(place, recorded, room) as sandbox:
                result = await verifier.run(sandbox, Path(logs))
        except VerifierError as error:
            said = f"fails: {error.message}"
        else:
            if _worth(result) == _worth(first):
                return
            said = f"gives {_worth(result)}"
    raise VerifierError(
        f"the verifier of the first scoring gave {_worth(first)}, and {said} with the kept workspace in a new sandbox: "
        "what it reads is not all in the workspace, or it does not always say the same",
        file=str(place.rollout.paths.root),
        remedy=_OUTSIDE,
    )


def _worth(result: VerifyResult) -> float | dict[str, float] | None:
    """Return what a result says of the work: its scalar, or its several keys."""
    return result.rewards if result.is_keyed else result.reward
