"""The activities of a rollout: each makes the rollout on this host and calls one of its methods."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from benchflow.activities.boundary import failures_before
from benchflow.activities.context import WorkerContext
from benchflow.contracts import names
from benchflow.contracts.activities import (
    CheckpointInput,
    Connected,
    ConnectInput,
    ProvisionInput,
    Readied,
    ReadinessInput,
    ReleaseInput,
    ReportInput,
    ReportResult,
    RolloutPlan,
    SandboxInput,
    SoftVerifyInput,
    StepInput,
    TreeInput,
    VerifyInput,
)
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.ended import EndedState, RetainInput
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rescoring import AgentlessScore
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollback import UndoInput, Undone
from benchflow.contracts.rollout import TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.contracts.scoring import AgentlessInput
from benchflow.errors import HostFullError
from benchflow.hosting.checkpoints import wait_frozen
from benchflow.hosting.kept import recall, remove_kept, retain
from benchflow.hosting.rescoring import StoredScoring
from benchflow.hosting.rollout import HostedRollout
from benchflow.hosting.scoring_basis import ScoringBasis
from benchflow.hosting.trial import HostedTrial
from benchflow.planes.sandbox.timeouts import awake_timeout

_OF_ATTEMPT = 0.95
"""Fraction of the start-to-close timeout after which a report fails by itself, and is counted by `max_failures`: the
engine does not see, and so does not count, the attempts that the server times out."""


class RolloutActivities:
    """The activities by which a rollout's workflow acts on a host.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self.context = context

    async def _hosted(self, work: Any) -> HostedRollout:
        """Return the rollout of an activity's input, attached to the sandbox that it names."""
        return await HostedRollout.of(self.context, work.spec, work.sandbox)

    @activity.defn(name=names.PLAN)
    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        """Return the plan of a rollout: of its steps, of a trial of its world, or of its stored score."""
        if spec.stored is not None:
            return await StoredScoring(await ScoringBasis.of(self.context, spec, "")).plan()
        if spec.trial is not None:
            return HostedTrial(await HostedRollout.of(self.context, spec), "").plan()
        return (await HostedRollout.of(self.context, spec)).plan()

    @activity.defn(name=names.RESCORE)
    async def rescore(self, work: AgentlessInput) -> AgentlessScore:
        """Score a stored rollout again, without an agent."""
        basis = await ScoringBasis.of(self.context, work.spec, work.run_id)
        with basis.redacted_errors():
            return await StoredScoring(basis).rescore()

    @activity.defn(name=names.TRY_WORLD)
    async def try_world(self, work: AgentlessInput) -> AgentlessScore:
        """Try a world, without an agent: whether it does what its manifest declares."""
        return await HostedTrial(await HostedRollout.of(self.context, work.spec), work.run_id).run()

    # --- its sandbox ---------------------------------------------------------------------------------------------

    @activity.defn(name=names.PROVISION)
    async def provision(self, request: ProvisionInput) -> SandboxRef:
        """Start the rollout's sandbox, or find the one that an earlier attempt started.

        Raises:
            ApplicationError: This host has no free slot (`names.HOST_FULL`).
        """
        rollout = await HostedRollout.of(self.context, request.spec)
        try:
            return await rollout.provision(request, activity.info().attempt)
        except HostFullError as error:
            # Non-retryable: the workflow then calls `wait_for_slot`, whose time does not count towards its deadline.
            failure = failure_of(error)
            raise ApplicationError(failure.message, failure, type=names.HOST_FULL, non_retryable=True) from None

    @activity.defn(name=names.WAIT_FOR_SLOT)
    async def wait_for_slot(self, request: ProvisionInput) -> SandboxRef:
        """Wait for a free slot of this host, and return the sandbox that has it."""
        return await HostedRollout(self.context, request.spec).wait_for_slot(request)

    @activity.defn(name=names.READINESS)
    async def readiness(self, wanted: ReadinessInput) -> Readied | None:
        """Wait until the world is healthy, and return the state that it begins with; None without a world."""
        return await (await self._hosted(wanted)).make_ready(wanted)

    @activity.defn(name=names.TEARDOWN)
    async def teardown(self, work: SandboxInput) -> None:
        """Remove the sandbox, or leave one that the job shares. A sandbox that is gone is success."""
        await HostedRollout(self.context, work.spec, work.sandbox).tear_down()

    # --- its agent and its score ---------------------------------------------------------------------------------

    @activity.defn(name=names.CONNECT)
    async def connect(self, wanted: ConnectInput) -> Connected:
        """Open the agent's session, or resume the parent's."""
        return await (await self._hosted(wanted)).open_session(wanted)

    @activity.defn(name=names.EXECUTE)
    async def execute(self, work: StepInput) -> TurnResult:
        """Run one turn of the agent, or resume it where an earlier attempt left it."""
        return await (await self._hosted(work)).run_turn(work)

    @activity.defn(name=names.VERIFY)
    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score a step."""
        return await (await self._hosted(work)).verify(work)

    @activity.defn(name=names.SOFT_VERIFY)
    async def soft_verify(self, work: SoftVerifyInput) -> VerifyResult:
        """Return a verification preview of a step."""
        return await (await self._hosted(work)).preview(work)

    # --- its checkpoints -----------------------------------------------------------------------------------------

    @activity.defn(name=names.CHECKPOINT)
    async def checkpoint(self, work: CheckpointInput) -> Checkpoint:
        """Capture the state of the sandbox, or return what an earlier attempt captured."""
        return await (await self._hosted(work)).checkpoint(work)

    @activity.defn(name=names.RELEASE_CHECKPOINT)
    async def release(self, work: ReleaseInput) -> None:
        """Remove checkpoints of this host, freeze a waiting sandbox and lend its slot, or resume one with its model."""
        context = self.context
        for checkpoint in work.checkpoints:
            await remove_kept(context.paths.checkpoints / f"{checkpoint.id}.json", context.store)
        if work.waiting is not None:
            await wait_frozen(context, await context.sandbox(work.waiting))
        if work.resumed is not None:
            await (await self._hosted(work.resumed)).resume(work.resumed.session)

    @activity.defn(name=names.RETAIN)
    async def retain(self, work: RetainInput) -> None:
        """Retain checkpoints of this host beyond the rollout's end, and record its state for a roll-back."""
        await retain(self.context.paths, work)

    @activity.defn(name=names.RECALL)
    async def recall(self, rollout: str) -> EndedState:
        """Return the recorded state of a rollout that has ended. Raises `NotRestorableError` if there is none."""
        return await recall(self.context.paths, rollout)

    @activity.defn(name=names.UNDO)
    async def undo(self, work: UndoInput) -> Undone:
        """Put aside the results that the rollout has written since a checkpoint."""
        rollout = HostedRollout(self.context, work.spec, work.sandbox)
        await rollout.read_task()
        return await rollout.undo(work)

    # --- its results ---------------------------------------------------------------------------------------------

    @activity.defn(name=names.WRITE_TREE)
    async def write_tree(self, work: TreeInput) -> None:
        """Write the rollout's tree into its results."""
        await HostedRollout(self.context, work.spec).write_tree(work.tree)

    @activity.defn(name=names.REPORT)
    async def report(self, report: ReportInput) -> ReportResult:
        """Collect logs and artifacts from the sandbox, and write the rollout's result."""
        async with _attempt_limit():
            return await self._report(report)

    @activity.defn(name=names.REPORT_WITHOUT_SANDBOX)
    async def report_without_sandbox(self, report: ReportInput) -> ReportResult:
        """Write the result of a rollout that has no sandbox on this host."""
        async with _attempt_limit():
            return await self._report(report)

    async def _report(self, report: ReportInput) -> ReportResult:
        rollout = HostedRollout(self.context, report.spec, report.sandbox)
        await rollout.read_task()
        return await rollout.report(report, lambda: failures_before() + 1 >= self.context.options.max_failures)


def _attempt_limit() -> AbstractAsyncContextManager[Any]:
    """Return a timeout for the running attempt, in attended seconds, whose end counts towards `max_failures`."""
    limit = activity.info().start_to_close_timeout
    return awake_timeout(limit.total_seconds() * _OF_ATTEMPT if limit is not None else None)
