"""The rollout on this host, with the operations that its activities call.

Errors are redacted, because they end up in workflow histories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from benchflow.contracts.activities import (
    CheckpointInput,
    Connected,
    ConnectInput,
    ProvisionInput,
    Readied,
    ReadinessInput,
    ReportInput,
    ReportResult,
    RolloutPlan,
    SoftVerifyInput,
    StepInput,
    VerifyInput,
)
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.operator_options import CAPACITY_VARIABLE
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollback import UndoInput, Undone
from benchflow.contracts.rollout_records import AgentSession, RolloutTree, TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.errors import BenchFlowError, HostFullError
from benchflow.hosting import hosted_checkpoints, planning, provisioning, step_scoring
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.hosting.hosted_turn import HostedTurn
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.reporting import HostedReport
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.results.write import write_json


class HostedRollout(Hosted):
    """A rollout on this host, made once per activity; its methods are the work of the activities."""

    def plan(self) -> RolloutPlan:
        """Return the plan of the rollout: steps, time limits and warnings.

        Raises `TaskError`, `UnsupportedFeatureError` or `MissingSecretError`, among others, for a task that can't run
        here: see `planning.plan`.
        """
        with self.redact_errors():
            return planning.plan(self)

    # --- its sandbox ---------------------------------------------------------------------------------------------

    async def provision(self, request: ProvisionInput, attempt: int) -> SandboxRef:
        """Take a slot of this host, provision the rollout's sandbox in it, and return the sandbox's reference.

        A retry finds the sandbox of an earlier attempt. After a failure or a cancellation, sandbox and slot are
        released; if only the worker stops, they stay for the next attempt.

        Args:
            request: Run, generation and checkpoint.
            attempt: Number of the activity's attempt.

        Raises:
            HostFullError: No slot is free.
            BenchFlowError: The sandbox can't be started or set up: see `provisioning.provision`.
        """
        slots, name = self.host.slots, provisioning.make_sandbox_name(self.host.stack, request)
        if not slots.take(name, attempt, provisioning.find_slot_owner(request)):
            raise HostFullError("all sandbox slots of this host are taken", key=CAPACITY_VARIABLE)
        with slots.in_use(name), self.redact_errors():
            try:
                return await provisioning.provision(self, request, name)
            except asyncio.CancelledError:
                if is_cancelled():
                    await run_to_completion(self._discard(name, attempt))
                raise
            except Exception:
                await self._discard(name, attempt)
                raise

    async def _discard(self, name: str, attempt: int) -> None:
        """Remove the sandbox of a failed provision, and free its slot; errors are left to the reaper.

        An attempt that was given up as lost but still runs must not remove the sandbox of its successor, and no rollout
        removes the sandbox of its job.
        """
        if self.spec.job_run_id is not None or not self.host.slots.is_current(name, attempt):
            return
        with suppress(BenchFlowError):
            await get_provider(self.spec.run.sandbox).remove(name)
        self.host.release(name)

    async def wait_for_slot(self, request: ProvisionInput) -> SandboxRef:
        """Take a slot of this host as soon as one is free, and return a reference of the sandbox, which is not started.

        Args:
            request: Run and generation of the provision that follows on this host.

        Raises:
            HostFullError: No slot was free for `slot_wait_sec`. Retried: another host may take the next attempt.
        """
        host, name = self.host, provisioning.make_sandbox_name(self.host.stack, request)
        # Attempt 0: only attempts of `provision`, which works in the slot, are counted.
        await host.slots.wait(name, attempt=0, owner=provisioning.find_slot_owner(request))
        return SandboxRef(
            provider=self.spec.run.sandbox,
            name=name,
            handle=name,
            host_id=host.host_id,
            queue=host.queue,
            workdir="/",
            generation=request.generation,
        )

    async def make_ready(self, wanted: ReadinessInput) -> Readied | None:
        """Start the world, wait until it and the task's healthcheck are healthy, and return its initial state.

        Returns None for a task without a world. See `provisioning.make_ready`.
        """
        with self.redact_errors():
            return await provisioning.make_ready(self, wanted)

    async def tear_down(self) -> None:
        """Remove the sandbox, or leave one that the job shares. A missing sandbox is success."""
        await provisioning.tear_down(self)

    # --- its agent -----------------------------------------------------------------------------------------------

    async def open_session(self, wanted: ConnectInput) -> Connected:
        """Prepare the agent's account, and open its session, or resume the parent's: see `HostedAgent.connect`."""
        with self.redact_errors():
            return await HostedAgent(self).connect(wanted)

    async def run_turn(self, work: StepInput) -> TurnResult:
        """Run a turn to its end or to a question of the agent, or resume it where an earlier attempt left it."""
        with self.redact_errors():
            return await HostedTurn(self, work).run()

    # --- its score -----------------------------------------------------------------------------------------------

    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score the state that a step led to, and return the result: see `scoring.verify`. The agent is ended."""
        with self.redact_errors():
            return await step_scoring.verify(self, work)

    async def preview(self, work: SoftVerifyInput) -> VerifyResult:
        """Return a verification preview: the verifier's result between turns. The agent and the world are not ended."""
        with self.redact_errors():
            return await step_scoring.preview(self, work)

    # --- its checkpoints -----------------------------------------------------------------------------------------

    async def checkpoint(self, work: CheckpointInput) -> Checkpoint:
        """Capture the state of the sandbox, or return the checkpoint of an earlier attempt."""
        with self.redact_errors():
            return await hosted_checkpoints.take_checkpoint(self, work)

    async def resume(self, session: AgentSession | None) -> None:
        """Thaw the sandbox, which waited for the rollout's children, and release its agent's model calls."""
        await hosted_checkpoints.resume(self, session)

    async def undo(self, work: UndoInput) -> Undone:
        """Move everything that the rollout has written since a checkpoint to `rollbacks/`; return directory and usage.

        See `checkpoints.undo`.
        """
        with self.redact_errors():
            return await hosted_checkpoints.undo(self, work)

    # --- its results ---------------------------------------------------------------------------------------------

    async def write_tree(self, tree: RolloutTree) -> None:
        """Write the current tree of a running rollout to its results."""
        paths = await asyncio.to_thread(self.make_results_directory)
        await asyncio.to_thread(write_json, paths.tree, tree.model_dump(mode="json"))

    async def report(self, report: ReportInput, is_last_attempt: Callable[[], bool]) -> ReportResult:
        """Collect logs and artifacts from the sandbox, if there is one, and write the result.

        Args:
            report: All that the workflow knows of the rollout.
            is_last_attempt: Returns whether no retry follows if this attempt fails.
        """
        writing = HostedReport(self, report, is_last_attempt)
        with self.redact_errors():
            if report.sandbox is None:
                return await writing.write_without_sandbox()
            return await writing.collect_and_write()
