"""RolloutWorkflow: one rollout from plan to teardown. The workflow decides, and leaves all I/O to activities.

Each part has a module: the sandbox is provisioned (`hosts`), turns are driven in it (`turns`), children start from its
checkpoints (`checkpoints`, `branching`), and the result is reported (`ending`). They share one `RolloutState`.

Whatever is raised, the result is reported, the sandbox is torn down, and the outcome goes once to the job, or to the
parent in a tree. A failure is data in the outcome; the workflow itself only fails if it was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import RolloutPlan, VerifyInput
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.job import RolloutProgress, RolloutSpec
    from benchflow.contracts.rescoring import AgentlessScore
    from benchflow.contracts.rescoring_basis import AgentlessInput
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rewards import first_failure, is_worth_scoring, leads_on
    from benchflow.contracts.rollback import Restore, Restored, Undone
    from benchflow.contracts.rollout_records import Answer, RolloutOutcome, Step, StepOutcome, TurnResult
    from benchflow.contracts.slot_messages import SlotGrant
    from benchflow.errors import (
        HostLostError,
        NotRestorableError,
        RolloutCancelledError,
        RolloutDeadlineError,
        UsageError,
    )
    from benchflow.sanitise import sanitise_markdown
    from benchflow.workflows import activity_options
    from benchflow.workflows.agent_turns import AgentTurns
    from benchflow.workflows.branching import Branching
    from benchflow.workflows.clock import Deadline, Phases
    from benchflow.workflows.ending import Ending
    from benchflow.workflows.hosts import HostGoneError, RolloutSandbox
    from benchflow.workflows.operator import format_phase_detail, format_rollout_details, show
    from benchflow.workflows.rollout_checkpoints import (
        Checkpoints,
        RestorePoint,
        RolloutRestores,
        make_lost_checkpoints_error,
    )
    from benchflow.workflows.rollout_slots import RolloutSlots
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_cancellation import await_result, run_to_end
    from benchflow.workflows.workflow_failures import make_failure


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert an error of the block to an `ApplicationError`, which fails the update.

    An error that is no `FailureError` would fail the workflow task, which the server retries for ever.
    """
    try:
        yield
    except FailureError:
        raise
    except Exception as error:
        workflow.logger.exception("an update failed by a fault of the engine")
        raise ApplicationError(f"{type(error).__name__}: {error}", type=type(error).__name__) from error


@workflow.defn(name=temporal_names.ROLLOUT_WORKFLOW)
class RolloutWorkflow:
    """Workflow of one rollout, a root or a branch child."""

    @workflow.init
    def __init__(self, spec: RolloutSpec) -> None:
        """Make the state of the rollout, and the modules that share it.

        Args:
            spec: Specification of the rollout.
        """
        self.options = spec.options
        self.slots = RolloutSlots(spec)
        self._state = state = RolloutState(spec, run_id=workflow.info().first_execution_run_id)
        self._deadline = Deadline(spec.run.deadline_sec)
        self._phases = Phases(self._deadline, check_stop=state.check_stop, on_update=self._show)
        self._sandbox = RolloutSandbox(state, self._phases)
        self._checkpoints = Checkpoints(state, self._phases, self._sandbox)
        self._restores = RolloutRestores(state, self._sandbox)
        self._turns = AgentTurns(state, self._phases, self._sandbox, self._checkpoints)
        self._branching = Branching(state, self._phases, self._sandbox, self._checkpoints, self._turns)
        self._ending = Ending(state, self._phases)
        self._in_sandbox: asyncio.Task[None] | None = None
        """Task of the work in the present sandbox, which a roll-back cancels; None before the first sandbox."""
        self._is_reverting = False
        """Whether the revert of the present `RestorePoint` is still to run. No roll-back is accepted meanwhile."""
        self._is_over = False
        """Whether the work has ended, successfully or not. Only the report and the teardown remain."""

    @workflow.run
    async def run(self, spec: RolloutSpec) -> RolloutOutcome | ChildOutcome:
        """Run the rollout, report it and tear it down.

        Args:
            spec: Specification of the rollout.

        Returns:
            The outcome: a `RolloutOutcome` of a root, a `ChildOutcome` of a child. A failure is part of it.

        Raises:
            CancelledError: The rollout was cancelled, and is reported and torn down.
        """
        state = self._state
        try:
            await self._work_in_time()
        except (asyncio.CancelledError, Exception) as error:
            if not isinstance(error, asyncio.CancelledError | FailureError):
                workflow.logger.exception("the rollout failed by a fault of the engine")
            state.error = make_failure(error, self._phases.phase)
        state.error = state.stop or state.error or state.agent_failure
        state.warnings += self._turns.answers.warnings
        try:
            outcome = await run_to_end(self._end(), on_cancel=self._ending.hurry)
        except Exception:
            workflow.logger.exception("the rollout's end has a defect, and is run once more")
            outcome = await run_to_end(self._end(), on_cancel=self._ending.hurry)
        if state.is_cancelled:
            raise asyncio.CancelledError
        return outcome

    async def _end(self) -> RolloutOutcome | ChildOutcome:
        return await self._ending.end(lost=self._restores.lost_queues, is_resumable=self._branching.is_resumable)

    async def _work_in_time(self) -> None:
        """Run the work, ended early by a cancellation or by the deadline."""
        state, work = self._state, asyncio.create_task(self._work())
        try:
            if not await self._deadline.wait_for(work):
                message = f"the rollout reached its deadline of {self._deadline.limit_sec:g} s"
                state.stop = failure_of(RolloutDeadlineError(message), self._phases.phase)
        except asyncio.CancelledError:
            state.stop = failure_of(RolloutCancelledError("the rollout was cancelled"), self._phases.phase)
        except Exception as error:
            # An error of the deadline's clock: the work must not continue beside the report and teardown.
            workflow.logger.exception("the rollout's clock failed")
            state.stop = make_failure(error, self._phases.phase)
        if state.stop is not None:
            for task in (work, *self._turns.previews):
                task.cancel()
        try:
            await run_to_end(work, on_cancel=self._ending.hurry)
        finally:
            self._is_over = True

    # --- the work ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Plan the rollout and run its steps; on another host if one is lost, up to `max_provisions` times."""
        state, origin = self._state, self._state.branch_origin
        state.plan = await workflow.execute_activity(
            temporal_names.PLAN,
            state.spec,
            result_type=RolloutPlan,
            summary=sanitise_markdown(state.spec.task.name),
            **activity_options.make_shared_options(),
        )
        state.warnings += state.plan.warnings
        if state.spec.stored is not None or state.spec.trial is not None:
            await self._score_without_agent(
                temporal_names.RESCORE if state.spec.stored is not None else temporal_names.TRY_WORLD
            )
            return
        start = RestorePoint(origin.checkpoint if origin is not None else None)
        if (restart := state.spec.restart) is not None:
            start = await self._restores.rewind_ended(restart)
        for _ in range(self.options.max_provisions):
            try:
                await self._run_on_host(start)
                self._is_over = True
                return
            except HostGoneError:
                lost = state.sandbox
                assert lost is not None
                if state.is_restarting:
                    raise make_lost_checkpoints_error(lost.queue) from None
                start = self._restores.rewind_lost()
                node = state.find_node(len(state.steps))
                again = "provisioned again" if start.revert is None else f"it went on from {node}"
                state.warnings.append(f"host {lost.host_id} was lost in {self._phases.phase}; {again}")
        message = f"{self.options.max_provisions} hosts in a row stopped answering"
        raise ApplicationError("the host was lost too often", failure_of(HostLostError(message)))

    async def _score_without_agent(self, activity: str) -> None:
        """Score a stored rollout and its children again, or try a world, and copy the result into the state.

        Args:
            activity: Name of the activity: `RESCORE` or `TRY_WORLD`.
        """
        state = self._state
        self._phases.begin("verify")
        wanted = AgentlessInput(spec=state.spec, run_id=workflow.info().first_execution_run_id)
        limits = activity_options.make_shared_options(state.plan.scoring_timeout_sec + self.options.margin_sec)
        scored: AgentlessScore = await await_result(
            workflow.start_activity(activity, wanted, result_type=AgentlessScore, **limits)
        )
        state.agentless = scored
        state.steps, state.outcomes, state.value = scored.steps, scored.outcomes, scored.value
        state.agent_failure = first_failure(state.steps)
        state.error = scored.error
        state.warnings += scored.warnings

    async def _run_on_host(self, start: RestorePoint) -> None:
        """Run the rollout to its end, with its roll-backs. Raise `HostGoneError`, and errors of activities."""
        state = self._state
        while True:
            state.provisions += 1
            self._is_reverting = start.revert is not None
            self._in_sandbox = asyncio.create_task(self._run_in_sandbox(start))
            try:
                await self._in_sandbox
            except (asyncio.CancelledError, FailureError, HostGoneError):
                if state.stop is not None or state.restore_to is None:
                    raise
            if state.restore_to is None:
                return
            start = await self._restores.roll_back()
            # The agent asks its questions again.
            self._turns.answers.clear()

    async def _run_in_sandbox(self, start: RestorePoint) -> None:
        """Provision a sandbox at `start`, carry out its pending revert, and run the remaining steps."""
        await self._turns.start_at(start.checkpoint)
        if start.revert is not None:
            limit = self.options.restore_limit_sec
            self._restores.record_revert(await self._sandbox.run(temporal_names.UNDO, start.revert, Undone, limit))
            self._is_reverting = False
        await self._run_steps()
        is_resumable = self._branching.is_resumable or self._state.keeps_checkpoints
        await self._checkpoints.release_after_work(is_resumable=is_resumable)

    async def _run_steps(self) -> None:
        """Run step by step, branching where due, until a step ends the rollout, or its children do."""
        state = self._state
        while len(state.steps) < state.last_step:
            done = len(state.steps)
            if children := await self._branching.choose_children():
                if not await self._branching.branch(await self._checkpoints.take(freezes=True), children):
                    return
                continue
            if self._branching.should_retain(done) and not self._checkpoints.has_retained(state.find_node(done)):
                self._checkpoints.retain(await self._checkpoints.take())
                await self._branching.write_tree()
            step = state.plan.steps[done]
            await self._turns.connect(step)
            outcome = await self._run_step(step, is_last=done + 1 == state.last_step)
            if outcome is None:
                return
            state.steps.append(outcome)
            if not leads_on(outcome):
                return

    async def _run_step(self, step: Step, *, is_last: bool) -> StepOutcome | None:
        """Run the turn of a step, and score it if the step is scored. Return the outcome.

        Returns None if the agent asked a question that children have answered: the rollout ends there.
        """
        state = self._state
        before = await self._checkpoints.take() if self._branching.watches_questions else None
        self._phases.begin("execute")
        turn = await self._turns.run_turn(step, partial(self._branching.branch_at_question, before))
        if turn.question is not None:
            return None
        await self._checkpoints.release(before)
        state.agent_failure = state.agent_failure or turn.failure
        if not is_worth_scoring(turn.failure):
            return StepOutcome(step=step, turn=turn)
        self._turns.update_resume_mode(step, turn)
        if not step.scored and not is_last and turn.failure is None:
            return StepOutcome(step=step, turn=turn)
        if is_last and state.is_adoptable and len(state.steps) + 1 < len(state.plan.steps):
            await self._checkpoints.take_leaf()
        return await self._verify(step, turn, is_last=is_last)

    async def _verify(self, step: Step, turn: TurnResult, *, is_last: bool) -> StepOutcome:
        """Score a step by the verifier, and return the outcome. A failure of the verifier is part of it."""
        self._phases.begin("verify")
        work = VerifyInput(
            **self._sandbox.fields,
            step=step,
            run_id=self._state.run_id,
            is_last=is_last,
            session=self._state.session,
            baseline=self._state.baseline,
        )
        limit = step.verify_timeout_sec + self.options.margin_sec
        try:
            verify = await self._sandbox.run(temporal_names.VERIFY, work, VerifyResult, limit, step.name)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            failure = make_failure(error, "verify")
            if failure.category.startswith(("verifier", "reward")):
                return StepOutcome(step=step, turn=turn, verifier_error=failure)
            raise
        return StepOutcome(step=step, turn=turn, verify=verify)

    # --- queries, signals and updates ---------------------------------------------------------------------------

    @workflow.query(name=temporal_names.PROGRESS)
    def progress(self) -> RolloutProgress:
        """Return the rollout's phase, the progress in it, and the question that waits for an answer."""
        state, phases = self._state, self._phases
        return RolloutProgress(
            phase=phases.phase,
            detail=self._format_phase(),
            since=phases.since.timestamp(),
            attempt=state.spec.attempt,
            chain=state.spec.chain,
            question=state.question,
            rollback=state.rollbacks[-1] if state.rollbacks and not state.is_restarting else None,
        )

    @workflow.signal(name=temporal_names.ANSWER)
    def answer(self, answer: Answer) -> None:
        """Take a user's answer to a question of the agent. The first valid one counts, so that a repeat is harmless."""
        self._turns.answers.add(answer, self._state.question)

    @workflow.signal(name=temporal_names.SLOTS_GRANTED)
    def take_slots(self, grant: SlotGrant) -> None:
        """Record the slots that the job has granted. Idempotent: the message has the total."""
        self.slots.grant(grant)

    @workflow.update(name=temporal_names.SOFT_VERIFY)
    async def soft_verify(self) -> VerifyResult:
        """Return how the verifier would score the world now, while the agent waits for an answer. Changes nothing.

        An answer that arrives meanwhile takes effect afterwards. Refused if no answer is awaited, or a preview runs.
        """
        with _convert_errors():
            return await self._turns.preview()

    @soft_verify.validator
    def _check_soft_verify(self) -> None:
        """Refuse the update unless the agent waits for an answer and no other preview runs."""
        if self._state.question is None:
            raise ApplicationError("the agent is in the middle of its turn, or there is none", type=UsageError.__name__)
        if self._turns.previews:
            raise ApplicationError("somebody else is looking at it", type=UsageError.__name__)

    @workflow.update(name=temporal_names.RESTORE)
    async def restore(self, wanted: Restore) -> Restored:
        """Roll the rollout back to a node, and return the reverted nodes once a new sandbox has the node's state.

        Args:
            wanted: The node, which needs a checkpoint. If it has none, the update is refused.

        Raises:
            ApplicationError: The rollout has ended before it was restored.
        """
        with _convert_errors():
            number = self._restores.request(wanted.node)
            assert self._in_sandbox is not None
            for task in (self._in_sandbox, *self._turns.previews):
                task.cancel()
            await workflow.wait_condition(lambda: self._is_over or self._restores.is_done(number))
            if not self._restores.is_done(number):
                raise ApplicationError("the rollout ended before it was back", type=NotRestorableError.__name__)
            return self._restores.get_result(number)

    @restore.validator
    def _check_restore(self, wanted: Restore) -> None:
        """Refuse the update unless the rollout runs and the node has a checkpoint."""
        is_over = self._is_over or self._state.stop is not None
        has_started = self._in_sandbox is not None and not self._is_reverting
        self._restores.check(wanted.node, is_over=is_over, has_started=has_started)

    # --- what an operator sees ----------------------------------------------------------------------------------

    def pause_deadline(self, thing: str) -> AbstractContextManager[None]:
        """Return a context in which the deadline's clock stops, and the Web UI shows what the rollout waits for.

        Args:
            thing: What it waits for, such as `hosts.SLOT`.
        """
        return self._deadline.pause(thing, self._show)

    def _show(self) -> None:
        show(self._format_details)

    def _format_phase(self) -> str:
        return format_phase_detail(self._state, self._phases.phase, self.slots, self._deadline.waits_for)

    def _format_details(self) -> str:
        phase = f"**{self._phases.phase}** {sanitise_markdown(self._format_phase())}"
        return format_rollout_details(self._state, phase, self._phases.timing)
