"""The activities of a rollout: each makes a `HostedRollout` on this host, and calls one of its methods.

Each may be attempted again, after a crash of the worker at any moment.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from benchflow.activities.boundary import count_failures
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts import temporal_names
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
from benchflow.contracts.rescoring_basis import AgentlessInput
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollback import UndoInput, Undone
from benchflow.contracts.rollout_records import TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.errors import HostFullError
from benchflow.hosting.checkpoint_records import recall, remove_checkpoint, retain
from benchflow.hosting.hosted_checkpoints import freeze_and_lend
from benchflow.hosting.hosted_rollout import HostedRollout
from benchflow.hosting.hosted_trial import HostedTrial
from benchflow.hosting.scoring_basis import ScoringBasis
from benchflow.hosting.stored_scoring import StoredScoring
from benchflow.planes.sandbox.timeouts import awake_timeout

_ATTEMPT_FRACTION = 0.95
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

    async def _attach(self, work: Any) -> HostedRollout:
        """Return the rollout of an activity's input, attached to the sandbox that it names."""
        return await HostedRollout.load(self.context, work.spec, work.sandbox)

    @activity.defn(name=temporal_names.PLAN)
    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        """Return the steps and time limits of a rollout, or the limits of its rescoring or trial. No side effects.

        Args:
            spec: Specification of the rollout.
        """
        if spec.stored is not None:
            return await StoredScoring(await ScoringBasis.load(self.context, spec, "")).plan()
        if spec.trial is not None:
            return HostedTrial(await HostedRollout.load(self.context, spec), "").plan()
        return (await HostedRollout.load(self.context, spec)).plan()

    @activity.defn(name=temporal_names.RESCORE)
    async def rescore(self, work: AgentlessInput) -> AgentlessScore:
        """Score a stored rollout and its children again, and return the scores. A retry skips steps that are scored.

        Args:
            work: The rollout, whose specification names the stored one.
        """
        basis = await ScoringBasis.load(self.context, work.spec, work.run_id)
        with basis.redact_errors():
            return await StoredScoring(basis).rescore()

    @activity.defn(name=temporal_names.TRY_WORLD)
    async def try_world(self, work: AgentlessInput) -> AgentlessScore:
        """Try a world without an agent, and return whether it does what its manifest declares.

        A retry starts the trial again, after it has removed the sandboxes of the attempt before.

        Args:
            work: The rollout, whose specification names the trial.
        """
        return await HostedTrial(await HostedRollout.load(self.context, work.spec), work.run_id).run()

    # --- its sandbox ---------------------------------------------------------------------------------------------

    @activity.defn(name=temporal_names.PROVISION)
    async def provision(self, request: ProvisionInput) -> SandboxRef:
        """Start the rollout's sandbox in a slot of this host, run its setup, and return its reference.

        A retry finds the sandbox that an earlier attempt started, by its name. An attempt that fails removes it, unless
        the job owns it.

        Args:
            request: The rollout, the number of the sandbox, and the checkpoint that it starts from.

        Raises:
            ApplicationError: This host has no free slot (`HostFullError`).
        """
        rollout = await HostedRollout.load(self.context, request.spec)
        try:
            return await rollout.provision(request, activity.info().attempt)
        except HostFullError as error:
            # Non-retryable: the workflow then calls `wait_for_slot`, whose time does not count towards its deadline.
            failure = failure_of(error)
            raise ApplicationError(failure.message, failure, type=failure.type, non_retryable=True) from None

    @activity.defn(name=temporal_names.WAIT_FOR_SLOT)
    async def wait_for_slot(self, request: ProvisionInput) -> SandboxRef:
        """Wait for a free slot of this host, take it, and return the reference of the future sandbox.

        A retry finds a slot that is taken already, by the sandbox's name.

        Args:
            request: Input of the provisioning that follows.
        """
        return await HostedRollout(self.context, request.spec).wait_for_slot(request)

    @activity.defn(name=temporal_names.READINESS)
    async def readiness(self, wanted: ReadinessInput) -> Readied | None:
        """Start the world's services and wait until they, and the task's healthcheck, are healthy.

        Args:
            wanted: The sandbox; if it starts from a checkpoint, also the state to compare with.

        Returns:
            The world and its initial state; None for a task without a world.
        """
        return await (await self._attach(wanted)).make_ready(wanted)

    @activity.defn(name=temporal_names.TEARDOWN)
    async def teardown(self, work: SandboxInput) -> None:
        """Remove the sandbox and free its slot, or leave a sandbox that the job shares. One that is gone is success.

        Args:
            work: The rollout and its sandbox.
        """
        await HostedRollout(self.context, work.spec, work.sandbox).tear_down()

    # --- its agent and its score ---------------------------------------------------------------------------------

    @activity.defn(name=temporal_names.CONNECT)
    async def connect(self, wanted: ConnectInput) -> Connected:
        """Prepare the agent, and open its session or resume that of a checkpoint.

        Args:
            wanted: The sandbox, the index of the session, and the session to resume.

        Returns:
            The session and its resume mode; no session if a replay of it is to be tried next.

        Raises:
            SessionNotLoadedError: The session can't be resumed in an accepted mode.
        """
        return await (await self._attach(wanted)).open_session(wanted)

    @activity.defn(name=temporal_names.EXECUTE)
    async def execute(self, work: StepInput) -> TurnResult:
        """Run one turn of the agent, to its end or to a question, and return its result.

        A retry resumes the turn where an earlier attempt left it: setup and prompt are not repeated.

        Args:
            work: The sandbox, the step, the session, and the answers to the questions of the turn so far.
        """
        return await (await self._attach(work)).run_turn(work)

    @activity.defn(name=temporal_names.VERIFY)
    async def verify(self, work: VerifyInput) -> VerifyResult:
        """Score the state after a step by the task's verifier, and return the rewards. Destructive: it ends the agent.

        A retry does not end the agent and record the world's state again.

        Args:
            work: The sandbox, the step, and the state that the agent began with.
        """
        return await (await self._attach(work)).verify(work)

    @activity.defn(name=temporal_names.SOFT_VERIFY)
    async def soft_verify(self, work: SoftVerifyInput) -> VerifyResult:
        """Return how the verifier would score the state during a step, without changing it. A retry starts again.

        Args:
            work: The sandbox, the step, and the number of the preview.
        """
        return await (await self._attach(work)).preview(work)

    # --- its checkpoints -----------------------------------------------------------------------------------------

    @activity.defn(name=temporal_names.CHECKPOINT)
    async def checkpoint(self, work: CheckpointInput) -> Checkpoint:
        """Capture the state of the sandbox, and return the checkpoint.

        A retry returns the checkpoint that an earlier attempt completed, or removes an incomplete one and starts again.

        Args:
            work: The sandbox, and the node of the tree that names the checkpoint.
        """
        return await (await self._attach(work)).checkpoint(work)

    @activity.defn(name=temporal_names.RELEASE_CHECKPOINT)
    async def release(self, work: ReleaseInput) -> None:
        """Remove checkpoints, freeze a sandbox and lend its slot, or thaw one and let its agent call its model again.

        Idempotent: missing checkpoints and sandboxes in the wanted state are success.

        Args:
            work: The checkpoints, the sandbox to freeze and the one to thaw; any of them may be missing.
        """
        context = self.context
        for checkpoint in work.checkpoints:
            await remove_checkpoint(context.paths.checkpoints / f"{checkpoint.id}.json", context.store)
        if work.waiting is not None:
            await freeze_and_lend(context, await context.attach_sandbox(work.waiting))
        if work.resumed is not None:
            await (await self._attach(work.resumed)).resume(work.resumed.session)

    @activity.defn(name=temporal_names.RETAIN)
    async def retain(self, work: RetainInput) -> None:
        """Retain checkpoints of this host beyond the rollout's end, and record its state for a roll-back.

        Idempotent. A checkpoint that is gone is ignored.

        Args:
            work: The rollout, its checkpoints on this host, and its state.
        """
        await retain(self.context.paths, work)

    @activity.defn(name=temporal_names.RECALL)
    async def recall(self, rollout: str) -> EndedState:
        """Return the recorded state of a rollout that has ended, with the checkpoints that this host still has.

        Args:
            rollout: Workflow id of the rollout.

        Raises:
            NotRestorableError: This host has no record of the rollout.
        """
        return await recall(self.context.paths, rollout)

    @activity.defn(name=temporal_names.UNDO)
    async def undo(self, work: UndoInput) -> Undone:
        """Move the results that the rollout has written since a checkpoint to the directory of the roll-back.

        A retry of the same run moves what is left, into the same directory.

        Args:
            work: The rollout, the node, and the steps and children to revert.

        Returns:
            The directory, and the reverted model usage that the workflow does not know.
        """
        rollout = HostedRollout(self.context, work.spec, work.sandbox)
        await rollout.read_task()
        return await rollout.undo(work)

    # --- its results ---------------------------------------------------------------------------------------------

    @activity.defn(name=temporal_names.WRITE_TREE)
    async def write_tree(self, work: TreeInput) -> None:
        """Write the tree of a running rollout to its results, in place of an earlier one.

        Args:
            work: The rollout and its tree.
        """
        await HostedRollout(self.context, work.spec).write_tree(work.tree)

    @activity.defn(name=temporal_names.REPORT)
    async def report(self, report: ReportInput) -> ReportResult:
        """Collect logs and artifacts from the sandbox, write the rollout's result, and return where it lies.

        A retry collects and writes again. A duplicate row is dropped at the job's end.

        Args:
            report: The rollout and its outcome, as its workflow knows it.
        """
        async with _limit_attempt():
            return await self._report(report)

    @activity.defn(name=temporal_names.REPORT_WITHOUT_SANDBOX)
    async def report_without_sandbox(self, report: ReportInput) -> ReportResult:
        """Write the result of a rollout without its sandbox, and return where it lies. Retries as in `report`.

        Args:
            report: The rollout and its outcome, as its workflow knows it.
        """
        async with _limit_attempt():
            return await self._report(report)

    async def _report(self, report: ReportInput) -> ReportResult:
        rollout = HostedRollout(self.context, report.spec, report.sandbox)
        await rollout.read_task()
        return await rollout.report(report, lambda: count_failures() + 1 >= self.context.options.max_failures)


def _limit_attempt() -> AbstractAsyncContextManager[Any]:
    """Return a timeout of the running attempt, a little before the server's, that counts towards `max_failures`.

    Time in which this process was frozen does not count.
    """
    limit = activity.info().start_to_close_timeout
    return awake_timeout(limit.total_seconds() * _ATTEMPT_FRACTION if limit is not None else None)
