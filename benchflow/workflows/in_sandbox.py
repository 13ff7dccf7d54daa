"""What a rollout does in one sandbox: from its start to the last step. A lost host ends it, and another one begins.

It decides, the activities do. What it has come to is what its workflow reports, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import (
        CheckpointInput,
        ProvisionInput,
        Readied,
        ReadinessInput,
        ReleaseInput,
        Resumed,
        RolloutPlan,
        SoftVerifyInput,
        StepInput,
        TreeInput,
        Undone,
        VerifyInput,
    )
    from benchflow.contracts.branch import ChildOutcome, ChildSpec
    from benchflow.contracts.checkpoint import Checkpoint, Rung, SessionBegin
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rewards import first_failure, is_worth_scoring, leads_on
    from benchflow.contracts.rollout import AgentSession, Answer, Failure, Question, Step, StepOutcome, TurnResult
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.trajectories.growth import asked_in
    from benchflow.workflows import slots
    from benchflow.workflows.branching import Branches, chain_nodes
    from benchflow.workflows.deadline import waiting
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import HostLost, on_host, provision, tear_down, wait_for_slot
    from benchflow.workflows.keeping import PutBack, release
    from benchflow.workflows.phases import Phases
    from benchflow.workflows.sessions import Sessions, replaying
    from benchflow.workflows.waiting import Answers, own_answer, seen_by


class InSandbox:
    """check_stop: raises `CancelledError` once the rollout is to stop. tell: is called when there is more to be seen.
    more: generations of further sandboxes. answers: of users.
    put_back: where it goes on, None from where the rollout begins.

    steps: those that were run, in a child the parent's before them. error: how an agent failed, which need not end it.
    kept: checkpoints of its nodes; later: others that are to be let go of when the root has ended.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        plan: RolloutPlan,
        phases: Phases,
        *,
        check_stop: Callable[[], None],
        tell: Callable[[], None],
        more: Iterator[int],
        answers: Answers,
        put_back: PutBack | None = None,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._phases = phases
        self._check_stop = check_stop
        self._tell = tell
        self._run_id = workflow.info().first_execution_run_id
        self._talks = Sessions(spec, self)
        self._more = more
        self._back = put_back
        self._generation = 0
        self.begun_with: Checkpoint | None = None
        self._answers = answers
        self._looked = 0
        self.looks: list[asyncio.Task[Any]] = []
        self.sandbox: SandboxRef | None = None
        self.readied: Readied | None = None
        back = put_back or PutBack(branches=Branches(spec), steps=spec.branch.before if spec.branch is not None else [])
        self.branches = back.branches
        self.steps = list(back.steps)
        self.question: Question | None = None
        self.leaf: Checkpoint | None = None
        self.kept = list(back.kept)
        self._talks.all += back.sessions
        self.later = list(back.later)
        self.warnings: list[str] = []
        self.error: Failure | None = first_failure(self.steps[self.branches.begun :])

    async def run(self, generation: int) -> None:
        """Provision, and run what steps are left. Raises `HostLost`, and what activities raise."""
        self._generation = generation
        await self._run()
        if not self.branches.may_be_gone_on_from:
            await self._release(*self._talks.begins)
        if self.begun_with is not None:
            await self._release(self.begun_with)

    @property
    def has_ended(self) -> bool:
        """Whether no step is left to be run: the last one is done, or one that ends the rollout."""
        has_run = len(self.steps) > self.branches.begun
        is_last = len(self.steps) >= self.branches.ends_at(len(self._plan.steps))
        return has_run and (is_last or not leads_on(self.steps[-1]))

    async def _run(self) -> None:
        plan, back, own = self._plan, self._back, self._spec.branch
        if back is None or (own is not None and back.checkpoint == own.checkpoint):
            await self._talks.begin()
        elif back.checkpoint is not None:
            self._talks.go_on_with(back.checkpoint.session)
            await self.have(back.checkpoint)
        if back is not None and back.undo is not None:
            undo = back.undo.model_copy(update={"sandbox": None})
            await self.on_host(names.UNDO, undo, Undone, self._spec.options.restore_limit_sec)
        last = self.branches.ends_at(len(plan.steps))
        while len(self.steps) < last:
            if children := await self.branches.due(self.steps, len(plan.steps)):
                if not await self._branch(await self._checkpoint(), children):
                    return
                continue
            if self.branches.keeps(len(self.steps)) and not self._keeps(self.branches.node(len(self.steps))):
                self.kept.append(await self._checkpoint(goes_on=True))
                await self._write_tree()
            step = plan.steps[len(self.steps)]
            if step.session != self._talks.connected:
                self._begin("connect")
                await self._talks.connect(step, plan.steps)
            outcome = await self._run_step(step, is_last=len(self.steps) + 1 == last)
            if outcome is None:
                return
            self.steps.append(outcome)
            if not leads_on(outcome):
                return

    def _begin(self, phase: Any) -> None:
        """Enter a phase of the work, unless it is to stop: an activity may end well although it was cancelled."""
        self._check_stop()
        self._phases.enter(phase)
        self._tell()

    async def on_host(
        self, name: str, arg: Any, result: Any, limit: float | None = None, summary: str | None = None
    ) -> Any:
        """Run an activity on the sandbox's host, unless the rollout is to stop."""
        assert self.sandbox is not None
        return await on_host(self.sandbox.queue, name, arg, result, limit, summary, before=self._check_stop)

    @property
    def spec(self) -> RolloutSpec:
        """As the activities in this sandbox have it."""
        return self._spec

    @property
    def sessions(self) -> list[AgentSession]:
        return self._talks.all

    @property
    def rung(self) -> Rung | None:
        """How a parent's session went on."""
        return self._talks.rung

    # --- before the agent ------------------------------------------------------------------------------

    async def have(self, checkpoint: Checkpoint | None, replays: SessionBegin | None = None) -> None:
        """Have a sandbox that begins with this, or with the task's image, in place of the one that there is, if any.

        replays: a session is to be driven in it to where another one was.
        """
        if self.sandbox is not None:
            await tear_down(self._spec, self.sandbox)
        self._spec = replaying(self._spec, replays)
        await self._provision(checkpoint)

    async def _provision(self, checkpoint: Checkpoint | None) -> None:
        spec, plan = self._spec, self._plan
        self._begin("provision")
        # The first is where a lost host's rollout begins again.
        is_first = self.sandbox is None
        await slots.current().hold()
        generation = self._generation if is_first else next(self._more)
        limit = plan.build_timeout_sec + plan.setup_timeout_sec + plan.install_timeout_sec
        limit += 2 * spec.run.sandbox_setup_timeout
        goes_on = self._back is not None or not is_first
        wanted = ProvisionInput(
            spec=spec, run_id=self._run_id, generation=generation, checkpoint=checkpoint, goes_on=goes_on
        )
        # Where its checkpoint lies, if it begins with one.
        near = checkpoint or (spec.branch.checkpoint if spec.branch is not None else None)
        self.sandbox = await provision(wanted, near, limit, before=self._check_stop)
        self.warnings += [text for text in self.sandbox.warnings if text not in self.warnings]
        if plan.has_healthcheck or plan.readiness_timeout_sec:
            self._begin("readiness")
            begun = {"baseline": checkpoint.baseline, "observed": checkpoint.observed} if checkpoint is not None else {}
            here = ReadinessInput(spec=spec, sandbox=self.sandbox, **begun)
            limit = plan.healthcheck_timeout_sec + plan.readiness_timeout_sec + spec.options.margin_sec
            self.readied = await self.on_host(names.READINESS, here, Readied | None, limit)
            self.branches.differences = self.readied.differences if self.readied is not None else ()
            self.warnings += self.branches.differences

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
        if not is_worth_scoring(turn.failure):
            return StepOutcome(step=step, turn=turn)
        self._talks.note_turn(step, turn)
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
            session=self._talks.current,
            baseline=self.readied.baseline if self.readied else None,
        )
        limit = step.verify_timeout_sec + self._spec.options.margin_sec
        try:
            verify = await self.on_host(names.VERIFY, verify_input, VerifyResult, limit, step.name)
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
        work = StepInput(spec=self._spec, sandbox=self.sandbox, step=step, session=self._talks.current, goes_on=goes_on)
        limit = (step.timeout_sec or self._spec.run.deadline_sec) + self._spec.options.margin_sec
        while True:
            turn: TurnResult = await self.on_host(names.EXECUTE, work, TurnResult, limit, step.name)
            if turn.question is None:
                self._talks.note_answers(step, work.answers)
                return turn
            if before is not None and (
                children := await self.branches.due(self.steps, len(self._plan.steps), turn.question)
            ):
                self.branches.asked = asked_in(self.branches.chain, len(self.steps))
                # Its checkpoint is from before the turn, which needed the slot.
                waiting_here = ReleaseInput(checkpoints=[], waiting=self.sandbox)
                await self.on_host(names.RELEASE_CHECKPOINT, waiting_here, None)
                await self._branch(before, children)
                return None
            answer = own_answer(self._spec, step, turn.question, work.answers) or await self._answer_to(turn.question)
            work = work.model_copy(update={"answers": [*work.answers, answer]})

    async def _answer_to(self, question: Question) -> Answer:
        # The turn may have come to its question although it was cancelled: then nobody ends this wait.
        self._check_stop()
        self.question = question
        self._tell()
        try:
            with waiting("an answer"):
                await workflow.wait_condition(lambda: self._answers.has(question) and not self.looks)
        finally:
            self.question = None
            self._tell()
        return self._answers.to(question)

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
        limit = step.verify_timeout_sec + self._spec.options.margin_sec
        look = asyncio.create_task(self.on_host(names.SOFT_VERIFY, work, VerifyResult, limit, step.name))
        return await seen_by(look, self.looks)

    # --- a branch --------------------------------------------------------------------------------------

    async def keep_begin(self) -> Checkpoint:
        """Keep the state in which a session is about to begin."""
        return await self._checkpoint(goes_on=True, name="-session")

    async def _checkpoint(self, *, steps_done: int | None = None, goes_on: bool = False, name: str = "") -> Checkpoint:
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
            node=self.branches.node(done) + name,
            steps_done=done,
            session=self._talks.current,
            baseline=self.readied.baseline if self.readied else None,
            begun=self._talks.begun,
        )
        limit = self._spec.options.checkpoint_limit_sec
        kept: Checkpoint = await self.on_host(names.CHECKPOINT, work, Checkpoint, limit, work.node)
        return kept

    def _keeps(self, node: str) -> bool:
        return any(one.node == node for one in self.kept)

    async def _release(self, *checkpoints: Checkpoint | None) -> None:
        """Let go of those that are not kept."""
        kept = {one.id for one in (*self.kept, *self.branches.kept)}
        unneeded = [one for one in checkpoints if one is not None and one.id not in kept]
        # What other hosts have may lie below what they have since: it is let go of together, in the end.
        self.later += [one for one in unneeded if one.is_portable]
        unneeded = [one for one in unneeded if not one.is_portable]
        if unneeded:
            await release(unneeded, before=self._check_stop)

    async def _branch(self, checkpoint: Checkpoint, children: tuple[ChildSpec, ...]) -> bool:
        """Have children go on from here; whether this rollout then goes on, here or where one of them has ended."""
        # The checkpoint may have been taken although it was cancelled.
        self._check_stop()
        slots.current().lend()
        if self._phases.phase != "branch":
            self._begin("branch")
        if self.branches.keeps(checkpoint.steps_done, branches=True) and not self._keeps(checkpoint.node):
            self.kept.append(checkpoint)
        grown = asyncio.Event()
        writing = asyncio.create_task(self._write_growth(grown))
        try:
            value = await self.branches.grow(checkpoint, children, self.steps, self._tell)
        finally:
            self.branches.go_on()
            # What it is about to write is older than what is written from now on. It may end well although cancelled.
            grown.set()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        if self.branches.goes_on_itself:
            await self._resume(checkpoint)
            return True
        chosen = self.branches.choose(value, workflow.random()) if self.branches.goes_on else None
        if chosen is not None:
            await self._go_on_from(chosen)
        leaves = [outcome.checkpoint for outcome in self.branches.outcomes]
        # What the sandbox has begun with is needed for as long as it may be captured.
        begun_with, self.begun_with = self.begun_with, chosen.checkpoint if chosen is not None else None
        await self._release(*(one for one in (checkpoint, begun_with, *leaves) if one != self.begun_with))
        return chosen is not None and chosen.checkpoint is not None

    async def _resume(self, checkpoint: Checkpoint) -> None:
        """Have the sandbox go on that has waited for its children, who have begun at the checkpoint."""
        assert self.sandbox is not None
        await self._release(checkpoint)
        await slots.current().hold()
        place = ProvisionInput(spec=self._spec, run_id=self._run_id, generation=self.sandbox.generation)
        await wait_for_slot(self.sandbox.queue, place, self._check_stop)
        resumed = Resumed(spec=self._spec, sandbox=self.sandbox, session=self._talks.current)
        await self.on_host(names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=[], resumed=resumed), None)

    async def _go_on_from(self, child: ChildOutcome) -> None:
        """Be where a child has ended: its steps are this rollout's, and its world, if more is to be done."""
        self.branches.adopt(child)
        self.steps += child.steps
        self.error = self.error or first_failure(child.steps)
        if child.checkpoint is None:
            return
        self._talks.go_on_with(child.checkpoint.session)
        await self.have(child.checkpoint)

    async def _write_growth(self, grown: asyncio.Event) -> None:
        """Write the tree down whenever it has grown, until it has grown to the end."""
        while not grown.is_set():
            ended = len(self.branches.outcomes)
            try:
                await self._write_tree()
            except HostLost:
                # What is done next on that host will tell.
                return
            await workflow.wait_condition(lambda n=ended: grown.is_set() or len(self.branches.outcomes) > n)  # type: ignore[misc]

    async def _write_tree(self) -> None:
        tree = self.branches.tree(chain_nodes(self.branches, self.steps, self.kept))
        try:
            await self.on_host(names.WRITE_TREE, TreeInput(spec=self._spec, tree=tree), None)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # What the report writes in the end is complete.
            workflow.logger.warning("the tree could not be written: %s", error.cause)
