"""RolloutWorkflow: one rollout from plan to teardown. It decides; the activities do.

Whatever is raised, the result is reported, what was provisioned is torn down, and the job, or the parent in a tree, is
told once. A failure is data in the outcome; the workflow itself only fails when it was cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReportInput, ReportResult, Restore, Restored, RolloutPlan
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.job import RolloutProgress, RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rewards import combine_steps, is_measured, scalar_of, status_of
    from benchflow.contracts.rollout import TRUNCATING, Answer, Failure, RolloutOutcome, Status
    from benchflow.contracts.slots import SlotGrant
    from benchflow.sanitise import sanitised_markdown
    from benchflow.workflows import options
    from benchflow.workflows.branching import chain_nodes, child_outcome
    from benchflow.workflows.cancellation import to_the_end
    from benchflow.workflows.children import bare_outcome, failed
    from benchflow.workflows.deadline import Deadline
    from benchflow.workflows.ending import ReportWriter, tell_job
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost, tear_down
    from benchflow.workflows.in_sandbox import InSandbox
    from benchflow.workflows.keeping import PutBack, release
    from benchflow.workflows.operator import phase_detail, rollout_details
    from benchflow.workflows.phases import Phases
    from benchflow.workflows.rollback import NOT_RESTORABLE, Rollbacks
    from benchflow.workflows.slots import Slots
    from benchflow.workflows.waiting import Answers, as_update_failure


@workflow.defn(name=names.ROLLOUT_WORKFLOW)
class RolloutWorkflow:
    @workflow.init
    def __init__(self, spec: RolloutSpec) -> None:
        self._spec = spec
        self.options = spec.options
        self._deadline = Deadline(spec.run.deadline_sec)
        self._phases = Phases(self._deadline)
        self._plan = RolloutPlan(steps=[])
        self._rollbacks = Rollbacks(spec)
        self._answers = Answers()
        # Of sandboxes beside those that lost hosts ask for.
        self._more = itertools.count(spec.options.max_provisions + 1)
        self._here = self._in_sandbox()
        self._in_work: asyncio.Task[None] | None = None
        self._writer = ReportWriter()
        self.slots = Slots(spec)
        self._provisions = 0
        self._warnings: list[str] = []
        self._error: Failure | None = None
        self._stop: Failure | None = None
        self._cancelled = False
        self._is_over = False
        self._lost: set[str] = set()

    def _in_sandbox(self, put_back: PutBack | None = None) -> InSandbox:
        return InSandbox(
            self._spec,
            self._plan,
            self._phases,
            check_stop=self._check_stop,
            tell=self._tell,
            more=self._more,
            answers=self._answers,
            put_back=put_back,
        )

    @workflow.run
    async def run(self, spec: RolloutSpec) -> RolloutOutcome | ChildOutcome:
        started = workflow.now()
        try:
            await self._work_in_time()
        except (asyncio.CancelledError, Exception) as error:
            if not isinstance(error, asyncio.CancelledError | FailureError):
                workflow.logger.exception("the rollout failed by a fault of the engine")
            self._error = failure_from(error, self._phases.phase)
        self._error = self._stop or self._error or self._here.error
        try:
            outcome = await to_the_end(self._end(started), on_cancel=self._writer.cancel)
        except Exception:
            workflow.logger.exception("the rollout's end has a defect, and is run once more")
            outcome = await to_the_end(self._end(started), on_cancel=self._writer.cancel)
        if self._cancelled:
            raise asyncio.CancelledError
        return outcome

    async def _work_in_time(self) -> None:
        """The work, ended early by a cancellation or by the deadline."""
        work = asyncio.create_task(self._work())
        try:
            if not await self._deadline.wait_for(work):
                message = f"the rollout reached its deadline of {self._deadline.limit_sec:g} s"
                self._stop = Failure(
                    type="RolloutDeadlineError", category="deadline", message=message, phase=self._phases.phase
                )
        except asyncio.CancelledError:
            self._cancelled = True
            self._stop = Failure(
                type="RolloutCancelledError",
                category="cancelled",
                message="the rollout was cancelled",
                phase=self._phases.phase,
            )
        except Exception as error:
            # The clock's: the work must not go on beside the rollout's end.
            workflow.logger.exception("the rollout's clock failed")
            self._stop = failure_from(error, self._phases.phase)
        if self._stop is not None:
            for task in (work, *self._here.looks):
                task.cancel()
        try:
            await to_the_end(work, on_cancel=self._writer.cancel)
        finally:
            self._is_over = True

    def waiting(self, thing: str) -> AbstractContextManager[None]:
        """Have the deadline's clock stand still for a block, and say for what the rollout waits in it."""
        return self._deadline.waiting(thing, self._tell)

    def _check_stop(self) -> None:
        if self._stop is not None or self._rollbacks.wanted is not None:
            raise asyncio.CancelledError

    async def _work(self) -> None:
        self._plan = await workflow.execute_activity(
            names.PLAN,
            self._spec,
            result_type=RolloutPlan,
            summary=sanitised_markdown(self._spec.task.name),
            **options.shared(),
        )
        self._warnings += self._plan.warnings
        back: PutBack | None = None
        for generation in range(self.options.max_provisions):
            self._here = self._in_sandbox(back)
            self._provisions += 1
            try:
                await self._run_here(generation)
                self._is_over = True
                return
            except HostLost:
                lost = self._here.sandbox
                assert lost is not None
                self._warnings += self._here.warnings
                back = self._rollbacks.after_loss(self._here, self._plan)
                self._lost.add(lost.queue)
                again = "provisioned again" if back is None else f"it went on from {back.node}"
                self._warnings.append(f"host {lost.host_id} was lost in {self._phases.phase}; {again}")
        self._here = self._in_sandbox()
        raise ApplicationError(
            "the host was lost too often",
            Failure(
                type="HostLostError",
                category="sandbox_lost",
                message=f"{self.options.max_provisions} hosts in a row stopped answering",
            ),
        )

    async def _run_here(self, generation: int) -> None:
        """Run to the end, in as many sandboxes as it is put back. Raises as `InSandbox.run` does."""
        while True:
            self._in_work = asyncio.create_task(self._here.run(generation))
            try:
                await self._in_work
            except (asyncio.CancelledError, FailureError, HostLost):
                if self._stop is not None or self._rollbacks.wanted is None:
                    raise
            if self._rollbacks.wanted is None:
                return
            await self._put_back()
            generation = next(self._more)

    async def _put_back(self) -> None:
        """Undo what came of a state, and be about to go on from there."""
        here = self._here
        back = await self._rollbacks.carry_out(here, self._plan)
        self._warnings += here.warnings
        # What was asked since is asked anew.
        self._answers.clear()
        self._here = self._in_sandbox(back)
        self._provisions += 1

    # --- what others ask and say -----------------------------------------------------------------------

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> RolloutProgress:
        return self._phases.progress(self._spec, self._phase_detail(), self._here.question)

    @workflow.signal(name=names.ANSWER)
    def answer(self, answer: Answer) -> None:
        """Take a user's answer to a question of the agent. Of two valid ones to one question the first counts."""
        self._answers.add(answer, self._here.question)

    @workflow.signal(name=names.SLOTS_GRANTED)
    def take_slots(self, grant: SlotGrant) -> None:
        """Take slots that the job has granted."""
        self.slots.grant(grant)

    @workflow.update(name=names.SOFT_VERIFY)
    async def soft_verify(self) -> VerifyResult:
        """What the verifier says of the world as it is, while the agent waits for an answer. Nothing is changed by it.

        The agent goes on when it is told: an answer that comes meanwhile waits.
        """
        with as_update_failure():
            return await self._here.look()

    @soft_verify.validator
    def _check_soft_verify(self) -> None:
        if self._here.question is None:
            raise ApplicationError("the agent is in the middle of its turn, or there is none", type="NotWaiting")
        if self._here.looks:
            raise ApplicationError("somebody else is looking at it", type="NotWaiting")

    @workflow.update(name=names.RESTORE)
    async def restore(self, wanted: Restore) -> Restored:
        """Go back to the state of a node, and on from there. Returns once the world is as it was."""
        with as_update_failure():
            number = self._rollbacks.ask(self._here, wanted.node)
            assert self._in_work is not None
            for task in (self._in_work, *self._here.looks):
                task.cancel()
            await workflow.wait_condition(lambda: self._is_over or self._is_back(number))
            if not self._is_back(number):
                raise ApplicationError("the rollout ended before it was back", type=NOT_RESTORABLE)
            return self._rollbacks.told(number)

    @restore.validator
    def _check_restore(self, wanted: Restore) -> None:
        is_over = self._is_over or self._stop is not None
        self._rollbacks.check(self._here, wanted.node, is_over=is_over, has_begun=self._in_work is not None)

    def _is_back(self, number: int) -> bool:
        return len(self._rollbacks.done) >= number and self._here.sandbox is not None

    # --- the end ---------------------------------------------------------------------------------------

    @contextmanager
    def _continuing(self) -> Iterator[None]:
        """Record an error that is raised inside as the rollout's, unless it has one, and continue after the block."""
        try:
            yield
        except Exception as error:
            workflow.logger.exception("the rollout's end continues after a fault of the engine")
            self._error = self._error or failure_from(error, self._phases.phase)

    async def _finish(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the end, once more where it raises."""
        for _ in range(2):
            with self._continuing():
                return await part()

    async def _end(self, started: datetime) -> RolloutOutcome | ChildOutcome:
        """Report, tear down, and notify the job or the parent: each of them although one before it raised."""
        rewards: dict[str, float] | None = None
        verifier_error: Failure | None = None
        n_tool_calls, here, is_frozen = 0, self._here, False
        with self._continuing():
            # Whoever cancels does not wait until there is a slot to look into the sandbox.
            is_frozen = not await self.slots.hold(lambda: self._cancelled or self._writer.is_cancelled)
        with self._continuing():
            rewards, verifier_error = self._measured()
            n_tool_calls = self._n_tool_calls()
        rewards = None if self._cancelled else rewards
        status: Status = "cancelled" if self._cancelled else status_of(rewards)
        with self._continuing():
            self._phases.enter("report", rewards)
            self._tell()
        least = ReportInput(
            spec=self._spec,
            run_id=workflow.info().first_execution_run_id,
            sandbox=here.sandbox,
            status=status,
            rewards=rewards,
            error=self._error,
            verifier_error=verifier_error,
            n_tool_calls=n_tool_calls,
            is_frozen=is_frozen,
            started_at=started.timestamp(),
            generations=self._provisions,
        )
        report, unwritten = await self._report(least)
        # What raises from now on leaves no trace in the result: it is written.
        error = self._error or unwritten
        if unwritten is not None and rewards is not None:
            # A score counts with the result that shows where it came from.
            status, rewards, error, here.branches.value = "errored", None, unwritten, None
        with self._continuing():
            await workflow.wait_condition(workflow.all_handlers_finished)
        with self._continuing():
            self._phases.enter("teardown")
        if self._spec.branch is None or self._cancelled:
            # A child that was cancelled hands up nothing.
            kept = [*here.kept, *here.later, *here.branches.kept]
            await self._finish(lambda: release(kept, lost=self._lost))
        await self._finish(lambda: tear_down(self._spec, here.sandbox))
        await self._finish(self.slots.close)
        with self._continuing():
            self._phases.enter("done")
            self._tell()
        outcome = RolloutOutcome(
            id=self._spec.id,
            index=self._spec.index,
            attempt=self._spec.attempt,
            status=status,
            rewards=rewards,
            reward_kind="measured" if here.branches.value is None else "value",
            error=error,
            verifier_error=verifier_error,
            is_truncated=error is not None and error.category in TRUNCATING,
            n_tool_calls=n_tool_calls,
            directory=report.directory,
            pack=report.pack,
            seconds=(workflow.now() - started).total_seconds(),
        )
        if self._spec.branch is None:
            await self._finish(lambda: tell_job(self._spec, outcome))
            return outcome
        kept = [*here.later, *here.kept]
        with self._continuing():
            return child_outcome(self._spec.branch, here.branches, here.steps, outcome, here.rung, here.leaf, kept)
        return bare_outcome(self._spec.branch, outcome, kept)

    def _measured(self) -> tuple[dict[str, float] | None, Failure | None]:
        """The rewards, or how a verifier failed."""
        branches, steps = self._here.branches, self._here.steps
        if branches.value is not None:
            # What a part of the children is worth is no value where the engine, or somebody's wish, ended the others.
            value = None if branches.pending and not is_measured(self._error) else branches.value.value
            if value is None and self._error is None:
                self._error = failed(branches.outcomes)
            return (None if value is None else {"reward": value}), None
        if len(steps) == branches.begun:
            # What led to where a child begins is its parent's.
            return None, None
        # Once the last step was scored, only an error of the work itself can have a say: the rewards are measured.
        return combine_steps(steps, self._plan.strategy, self._here.error if self._here.has_ended else self._error)

    def _n_tool_calls(self) -> int:
        branches = self._here.branches
        own = self._here.steps[branches.begun :]
        return sum(outcome.turn.n_tool_calls for outcome in own) + branches.n_tool_calls

    async def _report(self, least: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write all that is known, or the least that a row needs where that can't be sent. As `ReportWriter.write`."""
        for is_complete in (True, True, False):
            with self._continuing():
                report = self._complete(least) if is_complete else least.model_copy(update={"error": self._error})
                return await self._writer.write(report)
        return ReportResult(), self._error

    def _complete(self, report: ReportInput) -> ReportInput:
        """Add all that is known of the rollout to its report."""
        here = self._here
        is_root = self._spec.branch is None and bool(here.branches.outcomes)
        # What its own chain has earned, where that went on to an end.
        own = scalar_of(report.rewards) if here.branches.value is None else None
        tree = here.branches.tree(chain_nodes(here.branches, here.steps), own) if is_root else None
        known = {
            "steps": here.steps,
            "sessions": here.sessions,
            "tree": tree.without_checkpoints() if tree is not None else None,
            "value": here.branches.value,
            "used_below": here.branches.used,
            "rollbacks": self._rollbacks.done,
            "record": next((one.record for one in reversed(here.kept) if one.record is not None), None),
            "packs": {outcome.chain: outcome.pack for outcome in here.branches.outcomes if outcome.pack is not None},
            "rung": here.rung,
            "readied": here.readied,
            "warnings": self._warnings + here.warnings + self._answers.warnings,
            "timing": self._phases.timing,
        }
        return report.model_copy(update=known)

    # --- what an operator sees -------------------------------------------------------------------------

    def _tell(self) -> None:
        try:
            workflow.set_current_details(self._details())
        except Exception:
            # Nobody's rollout ends because it can't be shown.
            workflow.logger.exception("the rollout's details cannot be shown")

    def _phase_detail(self) -> str:
        here, phase = self._here, self._phases.phase
        counts = (len(here.steps), len(self._plan.steps))
        return phase_detail(phase, *counts, here.question, here.branches, self.slots, self._deadline.waits_for)

    def _details(self) -> str:
        here = self._here
        return rollout_details(
            self._spec,
            phase=f"**{self._phases.phase}** {sanitised_markdown(self._phase_detail())}",
            sandbox=here.sandbox,
            world=here.readied.world if here.readied else None,
            steps=here.steps,
            question=here.question,
            error=self._error or here.error,
            timing=self._phases.timing,
        )
