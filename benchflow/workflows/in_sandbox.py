"""What a rollout does in one sandbox: from its start to the last step. A lost host ends it, and another one begins.

It decides, the activities do. What it has come to is what its workflow reports, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import (
        CheckpointInput,
        Connected,
        ConnectInput,
        ProvisionInput,
        Readied,
        ReleaseInput,
        RolloutPlan,
        SandboxInput,
        SoftVerifyInput,
        StepInput,
        TreeInput,
        VerifyInput,
    )
    from benchflow.contracts.branch import ChildOutcome, ChildSpec, OnAskUser
    from benchflow.contracts.checkpoint import Checkpoint, Rung
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rewards import reaches
    from benchflow.contracts.rollout import (
        AgentSession,
        Answer,
        Failure,
        Question,
        Step,
        StepOutcome,
        TurnResult,
    )
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.trajectories.growth import asked_in
    from benchflow.workflows import options
    from benchflow.workflows.branching import Branches, chain_nodes
    from benchflow.workflows.ending import tear_down
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost, on_host
    from benchflow.workflows.phases import Phases


class InSandbox:
    """check_stop: raises `CancelledError` once the rollout is to stop. tell: is called when there is more to be seen.

    steps: those that were run, in a child the parent's before them. error: how an agent failed, which need not end it.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        plan: RolloutPlan,
        phases: Phases,
        *,
        check_stop: Callable[[], None],
        tell: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._phases = phases
        self._check_stop = check_stop
        self._tell = tell
        self._run_id = workflow.info().first_execution_run_id
        self._connected: int | None = None
        self._to_load = spec.branch.checkpoint.session if spec.branch is not None else None
        self._continued = 0
        self._begun_with: Checkpoint | None = None
        self._answers: dict[str, Answer] = {}
        self._looked = 0
        self._has_answered = False
        self.looks: list[asyncio.Task[Any]] = []
        self.sandbox: SandboxRef | None = None
        self.readied: Readied | None = None
        self.branches = Branches(spec)
        self.steps: list[StepOutcome] = list(spec.branch.before) if spec.branch is not None else []
        self.sessions: list[AgentSession] = []
        self.question: Question | None = None
        self.rung: Rung | None = None
        self.leaf: Checkpoint | None = None
        self.kept: list[Checkpoint] = []
        self.warnings: list[str] = []
        self.error: Failure | None = None

    async def run(self, generation: int) -> None:
        """Provision, and run what steps are left. Raises `HostLost`, and what activities raise."""
        await self._run(generation)
        if self._begun_with is not None:
            await self._release(self._begun_with)

    async def _run(self, generation: int) -> None:
        plan = self._plan
        own = self._spec.branch
        await self._provision(generation, own.checkpoint if own is not None else None)
        last = self.branches.ends_at(len(plan.steps))
        while len(self.steps) < last:
            if children := self.branches.due(len(self.steps), len(plan.steps)):
                if not await self._branch(await self._checkpoint(), children):
                    return
                continue
            if self.branches.keeps_all and len(self.steps) > self.branches.begun:
                self.kept.append(await self._checkpoint(goes_on=True))
            step = plan.steps[len(self.steps)]
            if step.session != self._connected:
                await self._connect(step.session)
            outcome = await self._run_step(step, is_last=len(self.steps) + 1 == last)
            if outcome is None:
                return
            self.steps.append(outcome)
            if not _goes_on(outcome):
                return

    def _begin(self, phase: Any) -> None:
        """Enter a phase of the work, unless it is to stop: an activity may end well although it was cancelled."""
        self._check_stop()
        self._phases.enter(phase)
        self._tell()

    async def _on_host(self, name: str, arg: Any, result: Any, limit: float, summary: str | None = None) -> Any:
        """Run an activity on the sandbox's host, unless the rollout is to stop."""
        assert self.sandbox is not None
        return await on_host(self.sandbox.queue, name, arg, result, limit, summary, before=self._check_stop)

    @property
    def _session(self) -> AgentSession | None:
        return self.sessions[-1] if self.sessions else None

    # --- before the agent ------------------------------------------------------------------------------

    async def _provision(self, generation: int, checkpoint: Checkpoint | None) -> None:
        spec, plan = self._spec, self._plan
        self._begin("provision")
        limit = plan.build_timeout_sec + plan.setup_timeout_sec + plan.install_timeout_sec
        limit += 2 * spec.run.sandbox_setup_timeout
        goes_on = self._continued > 0
        wanted = ProvisionInput(
            spec=spec, run_id=self._run_id, generation=generation, checkpoint=checkpoint, goes_on=goes_on
        )
        # Where its checkpoint lies, if it begins with one.
        where = options.on_host(checkpoint.queue, limit) if checkpoint is not None else options.shared(limit)
        self.sandbox = await workflow.execute_activity(
            names.PROVISION, wanted, result_type=SandboxRef, summary=spec.run.sandbox, **where
        )
        self.warnings += self.sandbox.warnings
        if plan.has_healthcheck or plan.readiness_timeout_sec:
            self._begin("readiness")
            here = SandboxInput(spec=spec, sandbox=self.sandbox)
            limit = plan.healthcheck_timeout_sec + plan.readiness_timeout_sec
            self.readied = await self._on_host(names.READINESS, here, Readied | None, limit)

    async def _connect(self, session: int) -> None:
        """Make the agent ready for the steps of a session; a child's first may be one that its parent has begun."""
        assert self.sandbox is not None
        self._begin("connect")
        layer = self._to_load
        load = layer if layer is not None and layer.session.index == session else None
        self._to_load = None
        request = ConnectInput(spec=self._spec, sandbox=self.sandbox, session=session, load=load)
        limit = self._spec.run.sandbox_setup_timeout + 60
        # Of a history that is older than this answer, none.
        connected = await self._on_host(names.CONNECT, request, Connected | None, limit) or Connected()
        self._connected = session
        self.warnings += connected.warnings
        self.rung = connected.rung or self.rung
        if connected.session is not None:
            self.sessions.append(connected.session)

    # --- a step ----------------------------------------------------------------------------------------

    async def _run_step(self, step: Step, *, is_last: bool) -> StepOutcome | None:
        """A step to its end; None where children go on with it, each with an answer of its own."""
        assert self.sandbox is not None
        before = await self._checkpoint(goes_on=True) if self.branches.watches_questions else None
        self._begin("execute")
        turn = await self._take_turn(step, before)
        if turn is None:
            return None
        if before is not None:
            await self._release(before)
        if turn.failure is not None and self.error is None:
            self.error = turn.failure
        if turn.failure is not None and turn.failure.category == "service":
            # What a verifier finds in a broken world is not what the agent did.
            return StepOutcome(step=step, turn=turn)
        if turn.prefix == "different":
            # It is not the session that its parent had.
            self.rung = "fresh"
        if not step.scored and not is_last and turn.failure is None:
            return StepOutcome(step=step, turn=turn)
        if is_last and self.branches.may_be_adopted and len(self.steps) + 1 < len(self._plan.steps):
            # A verifier leaves nothing as it was.
            self.leaf = await self._checkpoint(steps_done=len(self.steps) + 1)
        self._begin("verify")
        verify_input = VerifyInput(
            spec=self._spec,
            sandbox=self.sandbox,
            step=step,
            run_id=self._run_id,
            is_last=is_last,
            session=self._session,
            baseline=self.readied.baseline if self.readied else None,
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

    async def _take_turn(self, step: Step, before: Checkpoint | None) -> TurnResult | None:
        """A turn of the agent, to its end: where it asks what nobody has answered yet, that is waited for.

        before: the state that children go back to who answer for themselves; None is returned when they have.
        """
        assert self.sandbox is not None
        past = self.steps[-1].step if self.steps else None
        goes_on = past is not None and not past.scored and past.session == step.session
        work = StepInput(spec=self._spec, sandbox=self.sandbox, step=step, session=self._session, goes_on=goes_on)
        limit = (step.timeout_sec or self._spec.run.deadline_sec) + 120
        while True:
            turn: TurnResult = await self._on_host(names.EXECUTE, work, TurnResult, limit, step.name)
            if turn.question is None:
                return turn
            if before is not None and (
                children := self.branches.due(len(self.steps), len(self._plan.steps), turn.question)
            ):
                self.branches.asked = asked_in(self.branches.chain, len(self.steps))
                await self._branch(before, children)
                return None
            answer = self._own_answer(turn.question) or await self._answer_to(turn.question)
            work = work.model_copy(update={"answers": [*work.answers, answer]})

    def _own_answer(self, question: Question) -> Answer | None:
        """A child's answer to what its parent was asked; of what comes after, the first that allows to go on."""
        own, config = self._spec.branch, self._spec.run.branch
        if own is None or config is None or not isinstance(config.policy, OnAskUser):
            return None
        given = own.child.answer
        if given is not None and not self._has_answered:
            self._has_answered = True
            return given.model_copy(update={"question": question.id})
        kinds = {option.kind: option.id for option in reversed(question.options)}
        allowed = kinds.get("allow_once") or kinds.get("allow_always")
        return Answer(question=question.id, option=allowed or next((one.id for one in question.options), None))

    async def _answer_to(self, question: Question) -> Answer:
        self.question = question
        self._tell()
        await workflow.wait_condition(lambda: question.id in self._answers and not self.looks)
        self.question = None
        self._tell()
        return self._answers[question.id]

    def take_answer(self, answer: Answer) -> None:
        """A user's answer to what the agent asked. Of two to one question the first counts."""
        self._answers.setdefault(answer.question, answer)

    async def look(self) -> VerifyResult:
        """What the verifier says of the world as it is, while the agent waits for an answer."""
        assert self.sandbox is not None
        step = self._plan.steps[len(self.steps)]
        self._looked += 1
        work = SoftVerifyInput(
            spec=self._spec,
            sandbox=self.sandbox,
            step=step,
            run_id=self._run_id,
            number=self._looked,
            baseline=self.readied.baseline if self.readied else None,
        )
        limit = step.verify_timeout_sec + 120
        look = asyncio.create_task(self._on_host(names.SOFT_VERIFY, work, VerifyResult, limit, step.name))
        self.looks.append(look)
        try:
            result: VerifyResult = await look
        except ActivityError as error:
            raise ApplicationError(failure_from(error, "verify").message, type="VerifierError") from error
        except (asyncio.CancelledError, HostLost) as error:
            # Anything else than an ApplicationError would fail the workflow's task, and not the update.
            raise ApplicationError("the rollout has ended, or lost its host", type="NotWaiting") from error
        finally:
            self.looks.remove(look)
        return result

    # --- a branch --------------------------------------------------------------------------------------

    async def _checkpoint(self, *, steps_done: int | None = None, goes_on: bool = False) -> Checkpoint:
        """Keep the state. steps_done: that led to it; goes_on: the sandbox does, and does not wait for children."""
        assert self.sandbox is not None
        if not goes_on and steps_done is None:
            self._begin("branch")
        own, done = self._spec.branch, len(self.steps) if steps_done is None else steps_done
        work = CheckpointInput(
            spec=self._spec,
            sandbox=self.sandbox,
            run_id=own.run_id if own is not None else self._run_id,
            goes_on=goes_on or steps_done is not None,
            node=self.branches.node(done),
            steps_done=done,
            session=self._session,
            baseline=self.readied.baseline if self.readied else None,
        )
        kept: Checkpoint = await self._on_host(names.CHECKPOINT, work, Checkpoint, 900.0, work.node)
        return kept

    async def _release(self, *checkpoints: Checkpoint) -> None:
        if checkpoints:
            release = ReleaseInput(checkpoints=list(checkpoints))
            await self._on_host(names.RELEASE_CHECKPOINT, release, None, 120.0)

    async def _branch(self, checkpoint: Checkpoint, children: tuple[ChildSpec, ...]) -> bool:
        """Have children go on from here; whether this rollout goes on then, from where one of them has ended."""
        if self._phases.phase != "branch":
            self._begin("branch")
        writing = asyncio.create_task(self._write_growth())
        try:
            value = await self.branches.grow(checkpoint, children, self.steps, self._tell)
        finally:
            writing.cancel()
        chosen = self.branches.choose(value, workflow.random()) if self.branches.goes_on else None
        if chosen is not None:
            await self._go_on_from(chosen)
        outcomes = self.branches.outcomes
        kept = [one for outcome in outcomes for one in (outcome.checkpoint, *outcome.kept)]
        # What the sandbox has begun with is needed for as long as it may be captured.
        begun_with, self._begun_with = self._begun_with, chosen.checkpoint if chosen is not None else None
        still = self._begun_with.id if self._begun_with is not None else None
        await self._release(*(one for one in (checkpoint, begun_with, *kept) if one is not None and one.id != still))
        return chosen is not None and chosen.checkpoint is not None

    async def _go_on_from(self, child: ChildOutcome) -> None:
        """Be where a child has ended: its steps are this rollout's, and its world, if more is to be done."""
        self.branches.adopt(child)
        self.steps += child.steps
        if child.checkpoint is None:
            return
        await tear_down(self._spec, self.sandbox)
        self._continued += 1
        self._connected, self._to_load = None, child.checkpoint.session
        await self._provision(options.MAX_PROVISIONS + self._continued, child.checkpoint)

    async def _write_growth(self) -> None:
        """Write the tree down whenever it has grown, as long as somebody lets us."""
        while True:
            ended = len(self.branches.outcomes)
            tree = TreeInput(spec=self._spec, tree=self.branches.tree(chain_nodes(self.branches, self.steps)))
            try:
                await self._on_host(names.WRITE_TREE, tree, None, 120.0)
            except ActivityError as error:
                # What the report writes in the end is complete.
                workflow.logger.warning("the tree could not be written: %s", error.cause)
            await workflow.wait_condition(lambda known=ended: len(self.branches.outcomes) > known)  # type: ignore[misc]


def _goes_on(outcome: StepOutcome) -> bool:
    """Whether the next step may be run."""
    step = outcome.step
    if outcome.verify is not None:
        return step.scored and reaches(outcome.verify, step.min_reward)
    return not step.scored and outcome.turn.failure is None and outcome.verifier_error is None
