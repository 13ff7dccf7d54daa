"""RolloutWorkflow: one rollout from plan to teardown. It decides; the activities do.

Whatever happens, what was provisioned is torn down, the result is reported, and the job is told once. A failure
is data in the outcome; the workflow itself only fails when it was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import (
        CheckpointInput,
        Connected,
        ConnectInput,
        ProvisionInput,
        Readied,
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
    from benchflow.contracts.branch import BranchOrigin, ChildOutcome, ChildSpec
    from benchflow.contracts.checkpoint import Checkpoint, Rung
    from benchflow.contracts.job import RolloutProgress, RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rewards import combine_steps, reaches
    from benchflow.contracts.rollout import (
        TRUNCATING,
        AgentSession,
        Answer,
        Failure,
        Phase,
        Question,
        RolloutOutcome,
        Status,
        Step,
        StepOutcome,
        TurnResult,
    )
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.workflows import options
    from benchflow.workflows.branching import Branches, chain_nodes, failed
    from benchflow.workflows.cancellation import to_the_end
    from benchflow.workflows.ending import tear_down, tell_job, write_report
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost, on_host
    from benchflow.workflows.operator import rollout_details

_PHASE = SearchAttributeKey.for_keyword(names.ATTR_PHASE)
_REWARD = SearchAttributeKey.for_float(names.ATTR_REWARD)


@workflow.defn(name=names.ROLLOUT_WORKFLOW)
class RolloutWorkflow:
    @workflow.init
    def __init__(self, spec: RolloutSpec) -> None:
        self._spec = spec
        self._phase: Phase = "plan"
        self._phase_since: datetime = workflow.now()
        self._timing: dict[str, float] = {}
        self._plan: RolloutPlan | None = None
        self._sandbox: SandboxRef | None = None
        self._provisions = 0
        self._readied: Readied | None = None
        self._branches = Branches(spec)
        self._steps: list[StepOutcome] = list(spec.branch.before) if spec.branch is not None else []
        self._sessions: list[AgentSession] = []
        self._connected: int | None = None
        self._question: Question | None = None
        self._answers: dict[str, Answer] = {}
        self._warnings: list[str] = []
        self._error: Failure | None = None
        self._stop: Failure | None = None
        self._looked = 0
        self._looks: list[asyncio.Task[Any]] = []
        self._rung: Rung | None = None
        self._grown = False
        self._cancelled = False

    @workflow.run
    async def run(self, spec: RolloutSpec) -> RolloutOutcome | ChildOutcome:
        started = workflow.now()
        try:
            await self._work_in_time()
        except (asyncio.CancelledError, FailureError) as error:
            self._error = failure_from(error, self._phase)
        self._error = self._stop or self._error
        outcome = await to_the_end(self._end(started))
        if self._cancelled:
            raise asyncio.CancelledError
        return outcome

    async def _work_in_time(self) -> None:
        """The work, ended early by a cancellation or by the deadline."""
        work = asyncio.create_task(self._work())
        limit = self._spec.run.deadline_sec
        try:
            done, _ = await workflow.wait([work], timeout=limit)
            if not done:
                message = f"the rollout reached its deadline of {limit:g} s"
                self._stop = Failure(
                    type="RolloutDeadlineError", category="deadline", message=message, phase=self._phase
                )
        except asyncio.CancelledError:
            self._cancelled = True
            self._stop = Failure(
                type="RolloutCancelledError",
                category="cancelled",
                message="the rollout was cancelled",
                phase=self._phase,
            )
        if self._stop is not None:
            for task in (work, *self._looks):
                task.cancel()
        await to_the_end(work)

    def _begin(self, phase: Phase) -> None:
        """Enter a phase of the work, unless it is to stop: an activity may end well although it was cancelled."""
        self._check_stop()
        self._enter(phase)

    def _check_stop(self) -> None:
        if self._stop is not None:
            raise asyncio.CancelledError

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> RolloutProgress:
        since = self._phase_since.timestamp()
        return RolloutProgress(phase=self._phase, detail=self._phase_detail(), since=since, question=self._question)

    @workflow.signal(name=names.ANSWER)
    def answer(self, answer: Answer) -> None:
        """A user's answer to what the agent asked. Of two to one question the first counts."""
        self._answers.setdefault(answer.question, answer)

    @workflow.update(name=names.SOFT_VERIFY)
    async def soft_verify(self) -> VerifyResult:
        """What the verifier says of the world as it is, while the agent waits for an answer. Nothing is changed by it.

        The agent goes on when it is told: an answer that comes meanwhile waits.
        """
        assert self._sandbox is not None and self._plan is not None
        step = self._plan.steps[len(self._steps)]
        self._looked += 1
        work = SoftVerifyInput(
            spec=self._spec,
            sandbox=self._sandbox,
            step=step,
            run_id=workflow.info().first_execution_run_id,
            number=self._looked,
            baseline=self._readied.baseline if self._readied else None,
        )
        limit = step.verify_timeout_sec + 120
        look = asyncio.create_task(self._on_host(names.SOFT_VERIFY, work, VerifyResult, limit, step.name))
        self._looks.append(look)
        try:
            result: VerifyResult = await look
        except ActivityError as error:
            raise ApplicationError(failure_from(error, "verify").message, type="VerifierError") from error
        except (asyncio.CancelledError, HostLost) as error:
            # Anything else than an ApplicationError would fail the workflow's task, and not the update.
            raise ApplicationError("the rollout has ended, or lost its host", type="NotWaiting") from error
        finally:
            self._looks.remove(look)
        return result

    @soft_verify.validator
    def _check_soft_verify(self) -> None:
        if self._question is None:
            raise ApplicationError("the agent is in the middle of its turn, or there is none", type="NotWaiting")
        if self._looks:
            raise ApplicationError("somebody else is looking at it", type="NotWaiting")

    # --- the phases ------------------------------------------------------------------------------------

    async def _work(self) -> None:
        self._plan = await workflow.execute_activity(
            names.PLAN, self._spec, result_type=RolloutPlan, summary=self._spec.task.name, **options.shared()
        )
        self._warnings += self._plan.warnings
        for generation in range(options.MAX_PROVISIONS):
            try:
                await self._run_in_sandbox(self._plan, generation)
                return
            except HostLost:
                lost = self._sandbox
                assert lost is not None
                self._warnings.append(f"host {lost.host_id} was lost in {self._phase}; provisioned again")
                self._sandbox = self._readied = None
                self._steps = list(self._spec.branch.before) if self._spec.branch is not None else []
                self._sessions, self._connected = [], None
                self._branches = Branches(self._spec)
        raise ApplicationError(
            "the host was lost too often",
            Failure(
                type="HostLostError",
                category="sandbox_lost",
                message=f"{options.MAX_PROVISIONS} hosts in a row stopped answering",
            ),
        )

    async def _run_in_sandbox(self, plan: RolloutPlan, generation: int) -> None:
        spec = self._spec
        self._begin("provision")
        self._provisions += 1
        run_id = workflow.info().first_execution_run_id
        limit = plan.build_timeout_sec + plan.setup_timeout_sec + plan.install_timeout_sec
        limit += 2 * spec.run.sandbox_setup_timeout
        wanted = ProvisionInput(spec=spec, run_id=run_id, generation=generation)
        # A child begins where its checkpoint lies.
        where = options.on_host(spec.branch.checkpoint.queue, limit) if spec.branch else options.shared(limit)
        self._sandbox = await workflow.execute_activity(
            names.PROVISION, wanted, result_type=SandboxRef, summary=spec.run.sandbox, **where
        )
        self._warnings += self._sandbox.warnings
        here = SandboxInput(spec=spec, sandbox=self._sandbox)
        if plan.has_healthcheck or plan.readiness_timeout_sec:
            self._begin("readiness")
            limit = plan.healthcheck_timeout_sec + plan.readiness_timeout_sec
            self._readied = await self._on_host(names.READINESS, here, Readied | None, limit)
        last = self._branches.ends_at(len(plan.steps))
        while len(self._steps) < last:
            if children := self._branches.due(len(self._steps), len(plan.steps)):
                await self._branch(children)
                return
            step = plan.steps[len(self._steps)]
            if step.session != self._connected:
                await self._connect(step.session)
            outcome = await self._run_step(step, is_last=len(self._steps) + 1 == last)
            self._steps.append(outcome)
            if not _goes_on(outcome):
                break

    async def _branch(self, children: Sequence[ChildSpec]) -> None:
        """Have children go on from here, in place of this rollout."""
        assert self._sandbox is not None
        self._begin("branch")
        done, spec = len(self._steps), self._spec
        work = CheckpointInput(
            spec=spec,
            sandbox=self._sandbox,
            run_id=spec.branch.run_id if spec.branch is not None else workflow.info().first_execution_run_id,
            node=self._branches.node(done),
            steps_done=done,
            session=self._sessions[-1] if self._sessions else None,
            baseline=self._readied.baseline if self._readied else None,
        )
        checkpoint: Checkpoint = await self._on_host(names.CHECKPOINT, work, Checkpoint, 900.0, work.node)
        writing = asyncio.create_task(self._write_growth())
        try:
            await self._branches.grow(checkpoint, children, self._steps, self._note_growth)
        finally:
            writing.cancel()
        await self._on_host(names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=[checkpoint]), None, 120.0, work.node)

    def _note_growth(self) -> None:
        self._grown = True
        workflow.set_current_details(self._details())

    async def _write_growth(self) -> None:
        """Write the tree down whenever it has grown, as long as somebody lets us."""
        while True:
            self._grown = False
            tree = TreeInput(spec=self._spec, tree=self._branches.tree(chain_nodes(self._branches, self._steps)))
            with contextlib.suppress(ActivityError):
                # What the report writes in the end is complete.
                await self._on_host(names.WRITE_TREE, tree, None, 120.0)
            await workflow.wait_condition(lambda: self._grown)

    async def _connect(self, session: int) -> None:
        """Make the agent ready for the steps of a session."""
        assert self._sandbox is not None
        self._begin("connect")
        own = self._spec.branch
        layer = own.checkpoint.session if own is not None and self._connected is None else None
        load = layer if layer is not None and layer.session.index == session else None
        request = ConnectInput(spec=self._spec, sandbox=self._sandbox, session=session, load=load)
        limit = self._spec.run.sandbox_setup_timeout + 60
        connected: Connected = await self._on_host(names.CONNECT, request, Connected, limit)
        self._connected = session
        self._warnings += connected.warnings
        self._rung = connected.rung or self._rung
        if connected.session is not None:
            self._sessions.append(connected.session)

    async def _take_turn(self, step: Step) -> TurnResult:
        """A turn of the agent, to its end: where it asks what nobody has answered yet, that is waited for."""
        assert self._sandbox is not None
        session = self._sessions[-1] if self._sessions else None
        before = self._steps[-1].step if self._steps else None
        goes_on = before is not None and not before.scored and before.session == step.session
        work = StepInput(spec=self._spec, sandbox=self._sandbox, step=step, session=session, goes_on=goes_on)
        limit = (step.timeout_sec or self._spec.run.deadline_sec) + 120
        while True:
            turn: TurnResult = await self._on_host(names.EXECUTE, work, TurnResult, limit, step.name)
            if turn.question is None:
                return turn
            answer = await self._answer_to(turn.question)
            work = work.model_copy(update={"answers": [*work.answers, answer]})

    async def _answer_to(self, question: Question) -> Answer:
        self._question = question
        workflow.set_current_details(self._details())
        await workflow.wait_condition(lambda: question.id in self._answers and not self._looks)
        self._question = None
        workflow.set_current_details(self._details())
        return self._answers[question.id]

    async def _run_step(self, step: Step, *, is_last: bool) -> StepOutcome:
        assert self._sandbox is not None
        spec, sandbox = self._spec, self._sandbox
        self._begin("execute")
        turn = await self._take_turn(step)
        if turn.failure is not None and self._error is None:
            self._error = turn.failure
        if turn.failure is not None and turn.failure.category == "service":
            # What a verifier finds in a broken world is not what the agent did.
            return StepOutcome(step=step, turn=turn)
        if turn.prefix == "different":
            # It is not the session that its parent had.
            self._rung = "fresh"
        if not step.scored and not is_last and turn.failure is None:
            return StepOutcome(step=step, turn=turn)
        self._begin("verify")
        verify_input = VerifyInput(
            spec=spec,
            sandbox=sandbox,
            step=step,
            run_id=workflow.info().first_execution_run_id,
            is_last=is_last,
            session=self._sessions[-1] if self._sessions else None,
            baseline=self._readied.baseline if self._readied else None,
        )
        limit = step.verify_timeout_sec + 120
        try:
            verify = await self._on_host(names.VERIFY, verify_input, VerifyResult, limit, step.name)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            failure = failure_from(error, "verify")
            if failure.category.startswith(("verifier", "reward")):
                return StepOutcome(step=step, turn=turn, verifier_error=failure)
            raise
        return StepOutcome(step=step, turn=turn, verify=verify)

    async def _on_host(self, name: str, arg: Any, result: Any, limit: float, summary: str | None = None) -> Any:
        """Run an activity on the sandbox's host, unless the rollout is to stop."""
        assert self._sandbox is not None
        return await on_host(self._sandbox.queue, name, arg, result, limit, summary, before=self._check_stop)

    # --- the end ---------------------------------------------------------------------------------------

    async def _end(self, started: datetime) -> RolloutOutcome | ChildOutcome:
        rewards, verifier_error = self._measured()
        status: Status
        if self._cancelled:
            status, rewards = "cancelled", None
        elif rewards is None:
            status = "errored"
        else:
            status = "passed" if rewards["reward"] >= 1.0 else "failed"
        self._enter("report", rewards)
        report = await self._report(status, rewards, verifier_error, started)
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._enter("teardown")
        await tear_down(self._spec, self._sandbox)
        self._enter("done")
        outcome = RolloutOutcome(
            id=self._spec.id,
            index=self._spec.index,
            attempt=self._spec.attempt,
            status=status,
            rewards=rewards,
            error=self._error,
            verifier_error=verifier_error,
            is_truncated=self._truncated(),
            n_tool_calls=sum(outcome.turn.n_tool_calls for outcome in self._steps),
            directory=report.directory,
            pack=report.pack,
            seconds=(workflow.now() - started).total_seconds(),
        )
        if self._spec.branch is not None:
            return self._as_child(self._spec.branch, outcome)
        await tell_job(self._spec, outcome)
        return outcome

    def _as_child(self, origin: BranchOrigin, outcome: RolloutOutcome) -> ChildOutcome:
        own = chain_nodes(self._branches, self._steps)[1:]
        failure = outcome.error or outcome.verifier_error
        return ChildOutcome(
            chain=origin.chain,
            number=origin.number,
            reward=outcome.rewards["reward"] if outcome.rewards is not None else None,
            value=self._branches.value,
            failure=failure,
            rung=self._rung or origin.checkpoint.rung,
            leaf=own[-1].id if own else None,
            nodes=self._branches.nodes(own),
            children=self._branches.count,
        )

    def _measured(self) -> tuple[dict[str, float] | None, Failure | None]:
        """The rewards, or how a verifier failed."""
        if self._plan is None:
            return None, None
        value = self._branches.value
        if value is not None:
            if value.value is None and self._error is None:
                self._error = failed(self._branches.outcomes)
            return (None if value.value is None else {"reward": value.value}), None
        return combine_steps(self._steps, self._plan.strategy, self._error)

    @property
    def _is_root_of_more(self) -> bool:
        return self._spec.branch is None and bool(self._branches.outcomes)

    def _truncated(self) -> bool:
        return self._error is not None and self._error.category in TRUNCATING

    async def _report(
        self,
        status: Literal["passed", "failed", "errored", "cancelled"],
        rewards: dict[str, float] | None,
        verifier_error: Failure | None,
        started: datetime,
    ) -> ReportResult:
        report = ReportInput(
            spec=self._spec,
            run_id=workflow.info().first_execution_run_id,
            sandbox=self._sandbox,
            status=status,
            rewards=rewards,
            error=self._error,
            verifier_error=verifier_error,
            steps=self._steps,
            sessions=self._sessions,
            tree=self._branches.tree(chain_nodes(self._branches, self._steps)) if self._is_root_of_more else None,
            value=self._branches.value,
            readied=self._readied,
            warnings=self._warnings,
            timing=self._timing,
            started_at=started.timestamp(),
            generations=self._provisions,
        )
        written, failure = await write_report(report)
        self._error = self._error or failure
        return written

    # --- what an operator sees -------------------------------------------------------------------------

    def _enter(self, phase: Phase, rewards: dict[str, float] | None = None) -> None:
        now = workflow.now()
        seconds = (now - self._phase_since).total_seconds()
        self._timing[self._phase] = self._timing.get(self._phase, 0.0) + seconds
        self._phase, self._phase_since = phase, now
        updates: list[Any] = [_PHASE.value_set(phase)]
        if rewards is not None:
            updates.append(_REWARD.value_set(rewards["reward"]))
        workflow.upsert_search_attributes(updates)
        workflow.set_current_details(self._details())

    def _phase_detail(self) -> str:
        step = len(self._steps)
        total = len(self._plan.steps) if self._plan else 1
        if self._question is not None:
            return f"asks: {self._question.text}"
        return f"step {step + 1} of {total}" if total > 1 and self._phase in ("execute", "verify") else ""

    def _details(self) -> str:
        return rollout_details(
            self._spec,
            phase=f"**{self._phase}** {self._phase_detail()}",
            sandbox=self._sandbox,
            world=self._readied.world if self._readied else None,
            steps=self._steps,
            question=self._question,
            error=self._error,
            timing=self._timing,
        )


def _goes_on(outcome: StepOutcome) -> bool:
    """Whether the next step may be run."""
    step = outcome.step
    if outcome.verify is not None:
        return step.scored and reaches(outcome.verify, step.min_reward)
    return not step.scored and outcome.turn.failure is None and outcome.verifier_error is None
