"""The rollout on this host, with the verbs that its activities call.

Every error that leaves a verb is without the rollout's secrets: it ends up in histories.
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
from benchflow.contracts.options import CAPACITY_VARIABLE
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollback import UndoInput, Undone
from benchflow.contracts.rollout import AgentSession, RolloutTree, TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.errors import BenchFlowError, HostFullError
from benchflow.hosting import checkpoints, planning, provisioning, scoring
from benchflow.hosting.agent import HostedAgent
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.reporting import HostedReport
from benchflow.hosting.turn import HostedTurn
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.results.write import write_json


class HostedRollout(Hosted):
    """A rollout on this host, made once an activity."""

    def plan(self) -> RolloutPlan:
        """Return the steps of the task, and their limits. Raises what `planning.plan` raises."""
        with self.redacted_errors():
            return planning.plan(self)

    # --- its sandbox ---------------------------------------------------------------------------------------------

    async def provision(self, request: ProvisionInput, attempt: int) -> SandboxRef:
        """Have the sandbox run in a slot of this host. attempt: of the activity.

        Raises:
            HostFullError: No slot is free.
        """
        slots, name = self.host.slots, provisioning.sandbox_name(self.host.stack, request)
        if not slots.take(name, attempt, provisioning.slot_owner(request)):
            raise HostFullError("all sandbox slots of this host are taken", key=CAPACITY_VARIABLE)
        with slots.in_use(name), self.redacted_errors():
            try:
                return await provisioning.provision(self, request, name)
            except asyncio.CancelledError:
                if is_cancelled():
                    await see_through(self._discard(name, attempt))
                raise
            except Exception:
                await self._discard(name, attempt)
                raise

    async def _discard(self, name: str, attempt: int) -> None:
        """Remove what a failed provision has left; the reaper finds what this misses.

        An attempt that was given up as lost and lives on must not remove what its successor has found, and no rollout
        what its job owns.
        """
        if self.spec.job_run_id is not None or not self.host.slots.is_current(name, attempt):
            return
        with suppress(BenchFlowError):
            await get_provider(self.spec.run.sandbox).remove(name)
        self.host.release(name)

    async def wait_for_slot(self, request: ProvisionInput) -> SandboxRef:
        """Take a slot of this host as soon as one is free. Return where the sandbox is to be.

        Raises:
            HostFullError: No slot was free for `slot_wait_sec`. Retried: another host may take the next attempt.
        """
        host, name = self.host, provisioning.sandbox_name(self.host.stack, request)
        # Attempts are counted by what is done in the slot.
        await host.slots.wait(name, attempt=0, owner=provisioning.slot_owner(request))
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
        """Return when the world is healthy, with the state that it begins with; None for a task without a world."""
        with self.redacted_errors():
            return await provisioning.make_ready(self, wanted)

    async def tear_down(self) -> None:
        """Remove the sandbox, or leave the one that the job shares. A sandbox that is gone is success."""
        await provisioning.tear_down(self)

    # --- its agent -----------------------------------------------------------------------------------------------

    async def open_session(self, wanted: ConnectInput) -> Connected:
        """Prepare the agent's account, and open its session: resumed from the parent's in a child."""
        with self.redacted_errors():
            return await HostedAgent(self).connect(wanted)

    async def run_turn(self, work: StepInput) -> TurnResult:
        """Run a turn to its end, or until the agent asks; resume it where an earlier attempt left it."""
        with self.redacted_errors():
            return await HostedTurn(self, work).run()

    # --- its score -----------------------------------------------------------------------------------------------

    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score the state that a step led to. Processes that the agent left running end."""
        with self.redacted_errors():
            return await scoring.verify(self, work)

    async def preview(self, work: SoftVerifyInput) -> VerifyResult:
        """Return the verifier's result for the world as it is, between turns. Nothing is changed by it."""
        with self.redacted_errors():
            return await scoring.preview(self, work)

    # --- its checkpoints -----------------------------------------------------------------------------------------

    async def checkpoint(self, work: CheckpointInput) -> Checkpoint:
        """Capture the state of the sandbox, or return what an earlier attempt has captured."""
        with self.redacted_errors():
            return await checkpoints.take_checkpoint(self, work)

    async def resume(self, session: AgentSession | None) -> None:
        """Have the sandbox continue that has waited for its children."""
        await checkpoints.resume(self, session)

    async def undo(self, work: UndoInput) -> Undone:
        """Put aside what the rollout has written since a checkpoint."""
        with self.redacted_errors():
            return await checkpoints.undo(self, work)

    # --- its results ---------------------------------------------------------------------------------------------

    async def write_tree(self, tree: RolloutTree) -> None:
        """Write the tree as it has grown; the result comes later."""
        paths = await asyncio.to_thread(self.make_results_directory)
        await asyncio.to_thread(write_json, paths.tree, tree.model_dump(mode="json"))

    async def report(self, report: ReportInput, is_last_attempt: Callable[[], bool]) -> ReportResult:
        """Collect what lies in the sandbox, if there is one, and write the result. The rest as of `HostedReport`."""
        writing = HostedReport(self, report, is_last_attempt)
        with self.redacted_errors():
            if report.sandbox is None:
                return await writing.write_without_sandbox()
            return await writing.collect_and_write()
