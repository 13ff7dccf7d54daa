"""The world of a stored rollout as its agent left it: a new sandbox with the workspace that was kept, if one asks.

It is not taken on trust that the workspace is all that a verifier reads: the verifier of the first scoring must give it
the reward that it gave at first. Where no workspace was kept, nothing can be run; but what the verifier wrote at first
is read again, as long as the task is still the same.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchflow.contracts.reward import VerifyResult, Workbench
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.errors import BenchFlowError, VerifierError
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.stored_step import UNPINNED, StoredStep
from benchflow.planes.reward.workbench import SandboxWorkbench
from benchflow.results.rescored import changes

_OUTSIDE = (
    "have the task keep what is scored in its workspace, or run its rollouts again; "
    "--trust-workspace scores without this check"
)


@asynccontextmanager
async def workbench_of(step: StoredStep) -> AsyncIterator[Workbench]:
    """Yield the workbench of a step. What was started for it is removed at the end."""
    async with AsyncExitStack() as stack:
        yield _StoredWorkbench(step, stack)


class _StoredWorkbench:
    """A `Workbench` that finds its task, and starts its sandbox, when it is first asked for what needs them."""

    def __init__(self, step: StoredStep, stack: AsyncExitStack) -> None:
        self._step, self._stack = step, stack
        self._making, self._testing = asyncio.Lock(), asyncio.Lock()
        self._bench: SandboxWorkbench | None = None
        self._result: VerifyResult | BenchFlowError | None = None
        self._unproven: BenchFlowError | None = None
        """Why the workspace is not taken to be all that verifiers read; matters to the task's own verifier alone."""

    async def tests(self) -> VerifyResult:
        """Return the result of the task's own verifier: run again, or, without a workspace, read again."""
        async with self._testing:
            if self._result is None:
                try:
                    self._result = await self._test()
                except BenchFlowError as error:
                    self._result = error
        if isinstance(self._result, BenchFlowError):
            raise self._result
        return self._result

    async def _test(self) -> VerifyResult:
        step = self._step
        rollout = await step.by()
        if step.workspace is None:
            if not step.has_first or not step.is_same(rollout):
                raise step.nothing_kept(rollout)
            step.ran = "stored"
            return await asyncio.to_thread(step.first, rollout)
        if step.has_first and not step.is_trusted and step.is_same(rollout):
            return await self._again(rollout)
        bench = await self._made()
        if self._unproven is not None:
            raise self._unproven
        step.ran = "ran"
        return await bench.tests()

    async def _again(self, rollout: Hosted) -> VerifyResult:
        """Run the very verifier of the first scoring; where its reward differs now, the first result counts."""
        step = self._step
        first = await asyncio.to_thread(step.first, rollout)
        try:
            result = await (await self._made()).tests()
            if result.rewards == first.rewards:
                step.ran = "ran"
                return result
            differs = changes(first.rewards, result.rewards)
            how = ", ".join(f"{name} {change.before} → {change.after}" for name, change in differs.items())
        except VerifierError as error:
            how = f"it fails, {error.message}"
        step.ran = "stored"
        step.warnings.append(
            f"what the verifier wrote at first counts: run again with the kept workspace, {how}: it reads more than "
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
        """Run a command in the workspace, once for each key."""
        bench = await self._made()
        return await bench.run(key, command, files=files, env=env, timeout_sec=timeout_sec)

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """Return a file's content; None when there is none."""
        return await (await self._made()).read(path, limit=limit)

    async def _made(self) -> SandboxWorkbench:
        async with self._making:
            if self._bench is None:
                step = self._step
                rollout = await step.by()
                if step.has_first and not step.is_trusted and not step.is_same(rollout):
                    # Before there is a room, in a slot: enough steps that hold one and wait for another fill the host.
                    try:
                        await _check_workspace(step)
                    except BenchFlowError as error:
                        if error.retryable:
                            raise
                        self._unproven = error
                room = step.room(rollout)
                verifier = step.verifier(rollout, room)
                if step.baseline is None and verifier.config.hardening.pin_environment:
                    step.warnings.append(UNPINNED)

                async def open() -> Sandbox:
                    return await self._stack.enter_async_context(step.opened(rollout, room))

                self._bench = SandboxWorkbench(open, verifier, step.logs)
        return self._bench


async def _check_workspace(step: StoredStep) -> None:
    """Raise `VerifierError` unless the verifier of the first scoring gives the kept workspace what it gave at first."""
    recorded = await step.first_by()
    first = await asyncio.to_thread(step.first, recorded)
    room = step.room(recorded, "-first")
    verifier = step.verifier(recorded, room)
    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as logs:
        try:
            async with step.opened(recorded, room) as sandbox:
                result = await verifier.run(sandbox, Path(logs))
        except VerifierError as error:
            if error.retryable:
                raise
            how = f"fails: {error.message}"
        else:
            if _worth(result) == _worth(first):
                return
            how = f"gives {_worth(result)}"
    raise VerifierError(
        f"the verifier of the first scoring gave {_worth(first)}, and {how} with the kept workspace in a new sandbox: "
        "what it reads is not all in the workspace, or it does not always say the same",
        file=str(step.stored.paths.root),
        remedy=_OUTSIDE,
    )


def _worth(result: VerifyResult) -> float | dict[str, float] | None:
    """Return what a result gives the work: its scalar, or its several keys."""
    return result.rewards if result.is_keyed else result.reward
