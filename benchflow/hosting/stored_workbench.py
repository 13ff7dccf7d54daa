"""The workbench of a stored rollout: a new sandbox with the retained workspace, started when a scorer needs it.

A verifier may read more than the workspace. So the verifier of the first scoring must give the workspace the same
reward again, before another one is trusted. Without a retained workspace nothing can be run, but the reward file of the
first scoring is read again, as long as the task is still the same.
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
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.results.rescored import compare_metrics

_OUTSIDE = (
    "have the task keep what is scored in its workspace, or run its rollouts again; "
    "--trust-workspace scores without this check"
)


@asynccontextmanager
async def open_workbench(step: StoredStep) -> AsyncIterator[Workbench]:
    """Yield the workbench of a step. At the end, sandboxes that it started are removed, unless a retry needs them."""
    async with AsyncExitStack() as stack:
        yield _StoredWorkbench(step, stack)


class _StoredWorkbench:
    """A `Workbench` that reads its task and starts its sandbox at the first call that needs them."""

    def __init__(self, step: StoredStep, stack: AsyncExitStack) -> None:
        self._step, self._stack = step, stack
        self._making, self._testing = asyncio.Lock(), asyncio.Lock()
        self._bench: SandboxWorkbench | None = None
        self._result: VerifyResult | BenchFlowError | None = None
        self._unproven: BenchFlowError | None = None
        """Error that shows that verifiers read more than the workspace; raised for the task's own verifier only."""

    async def tests(self) -> VerifyResult:
        """Return the result of the task's own verifier, cached: run again, or read again without a workspace.

        A `BenchFlowError` is cached, too, and raised at each call.
        """
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
                raise step.make_no_workspace_error(rollout)
            step.ran = "stored"
            return await asyncio.to_thread(step.read_first_result, rollout)
        if step.has_first and not step.is_trusted and step.is_same(rollout):
            return await self._test_again(rollout)
        bench = await self._make_bench()
        if self._unproven is not None:
            raise self._unproven
        step.ran = "ran"
        return await bench.tests()

    async def _test_again(self, rollout: Hosted) -> VerifyResult:
        """Run the unchanged verifier again; if its reward differs now, return the first result, with a warning."""
        step = self._step
        first = await asyncio.to_thread(step.read_first_result, rollout)
        try:
            result = await (await self._make_bench()).tests()
            if result.rewards == first.rewards:
                step.ran = "ran"
                return result
            differs = compare_metrics(first.rewards, result.rewards)
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
        """Run a command in the workspace, once per idempotency key, and return its exit status and output."""
        bench = await self._make_bench()
        return await bench.run(key, command, files=files, env=env, timeout_sec=timeout_sec)

    async def read(self, path: str, *, limit: int) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        return await (await self._make_bench()).read(path, limit=limit)

    async def _make_bench(self) -> SandboxWorkbench:
        """Return the workbench of the new sandbox, made once, after a check of a changed task's workspace."""
        async with self._making:
            if self._bench is None:
                step = self._step
                rollout = await step.by()
                if step.has_first and not step.is_trusted and not step.is_same(rollout):
                    # Before the room takes a slot: steps that hold one and wait for another could fill the host.
                    try:
                        await _check_workspace(step)
                    except BenchFlowError as error:
                        if error.retryable:
                            raise
                        self._unproven = error
                room = step.make_room(rollout)
                verifier = step.make_verifier(rollout, room)
                if step.baseline is None and verifier.config.hardening.pin_environment:
                    step.warnings.append(UNPINNED)

                async def open() -> Sandbox:
                    return await self._stack.enter_async_context(step.open_room(rollout, room))

                self._bench = SandboxWorkbench(open, verifier, step.logs)
        return self._bench


async def _check_workspace(step: StoredStep) -> None:
    """Raise `VerifierError` unless the first scoring's verifier gives the retained workspace the same reward again."""
    recorded = await step.first_by()
    first = await asyncio.to_thread(step.read_first_result, recorded)
    room = step.make_room(recorded, "-first")
    verifier = step.make_verifier(recorded, room)
    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as logs:
        try:
            async with step.open_room(recorded, room) as sandbox:
                result = await verifier.run(sandbox, Path(logs))
        except VerifierError as error:
            if error.retryable:
                raise
            how = f"fails: {error.message}"
        else:
            if _get_reward(result) == _get_reward(first):
                return
            how = f"gives {_get_reward(result)}"
    raise VerifierError(
        f"the verifier of the first scoring gave {_get_reward(first)}, and {how} with the kept workspace in a new "
        "sandbox: what it reads is not all in the workspace, or it does not always say the same",
        file=str(step.stored.paths.root),
        remedy=_OUTSIDE,
    )


def _get_reward(result: VerifyResult) -> float | dict[str, float] | None:
    """Return a result's reward: the scalar, or the rewards by key if it is keyed."""
    return result.rewards if result.is_keyed else result.reward
