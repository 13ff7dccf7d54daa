"""The turns of a rollout's agent: sessions are opened or resumed, turns are driven, and questions are answered.

A child resumes its parent's session in the best possible mode. `load`: a new process of the agent loads the session, in
the copy of the world. `replay`: in the world where the session began, a new session is driven through the same turns,
with model calls answered from the record, and must reach the same world. `fresh`: a new session in the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import Connected, ConnectInput, SoftVerifyInput, StepInput, TakenBefore
    from benchflow.contracts.branch import BranchOrigin, OnAskUser
    from benchflow.contracts.checkpoint import Checkpoint, SessionBegin, SessionLayer, WorldDigests
    from benchflow.contracts.resuming import is_enough
    from benchflow.contracts.reward import VerifyResult
    from benchflow.contracts.rollout_records import Answer, Question, Step, TurnResult
    from benchflow.errors import UsageError, VerifierError
    from benchflow.workflows.clock import Phases, pause_deadline
    from benchflow.workflows.hosts import HostGoneError, RolloutSandbox
    from benchflow.workflows.rollout_checkpoints import Checkpoints
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_failures import make_failure

MAX_ANSWERS = 100
"""Maximum number of retained answers, beyond which only an answer to the present question is accepted."""

Respond = Callable[[Question, Sequence[Answer]], Awaitable[Answer | None]]
"""Callback that returns the answer to a question of the agent; None to leave the turn at the question.

Its arguments are the question, and the answers to earlier questions of the same turn.
"""


class Answers:
    """Answers of users to the agent's questions: the first valid one to a question counts, invalid ones are ignored."""

    def __init__(self) -> None:
        """Make it without answers."""
        self._answers: dict[str, Answer] = {}
        self._ignored = 0

    def add(self, answer: Answer, asked: Question | None) -> None:
        """Retain an answer, unless its question has a valid one already.

        Args:
            answer: The answer. It may be to a question other than `asked`: after the loss of a host, the agent may ask
                that one again.
            asked: The question that waits for an answer now; None for none.
        """
        is_asked = asked is not None and asked.id == answer.question
        if not is_asked and len(self._answers) >= MAX_ANSWERS:
            self._ignored += 1
            return
        self._answers.setdefault(answer.question, answer)
        if asked is not None:
            self.has(asked)

    def has(self, question: Question) -> bool:
        """Return whether a question has a valid answer. An answer with an unknown option is dropped and counted."""
        given = self._answers.get(question.id)
        if given is not None and given.option is not None and given.option not in {one.id for one in question.options}:
            del self._answers[question.id]
            self._ignored += 1
            return False
        return given is not None

    def get(self, question: Question) -> Answer:
        """Return the answer to a question, which must have one."""
        return self._answers[question.id]

    def clear(self) -> None:
        """Forget all answers: after a restore, the agent asks anew."""
        self._answers.clear()

    @property
    def warnings(self) -> list[str]:
        """Return a warning with the number of ignored answers; empty if none was ignored."""
        why = "they name no option of their question, or a question that was not asked"
        return [f"ignored answers: {self._ignored}; {why}"] if self._ignored else []


class AgentTurns:
    """Driver of a rollout's agent: opens or resumes its sessions, runs its turns, and has its questions answered."""

    def __init__(self, state: RolloutState, phases: Phases, sandbox: RolloutSandbox, checkpoints: Checkpoints) -> None:
        """Make it for one rollout, without a session.

        Args:
            state: State of the rollout, shared by its modules; the fields about sessions are set here.
            phases: Phases of the rollout.
            sandbox: Sandbox of the rollout, in which the agent runs.
            checkpoints: Checkpoints of the rollout.
        """
        self._state = state
        self._phases = phases
        self._sandbox = sandbox
        self._checkpoints = checkpoints
        self.answers = Answers()
        self._connected: int | None = None
        """Index of the session that is open in the sandbox; None if none is."""
        self._to_load: SessionLayer | None = None
        """Session of the checkpoint that the sandbox started from, until it is resumed."""
        self._not_replayed: str | None = None
        """Why a replay of the session has failed, for the warnings of the fresh session."""
        self.previews: list[asyncio.Task[VerifyResult]] = []
        """Verification previews that run in the present sandbox. A new sandbox has a new list."""
        self._n_previews = 0

    # --- the sandbox and its session ------------------------------------------------------------------------

    async def start_at(self, checkpoint: Checkpoint | None) -> None:
        """Provision a sandbox at a checkpoint. Its session is replayed now, or else resumed by `connect`.

        So starts a child, and so continues a rollout from a child, after a roll-back, and after a lost host.

        Args:
            checkpoint: The checkpoint; None to start a root from the task's image.
        """
        origin = self._state.branch_origin
        self._not_replayed, self.previews = None, []
        self._expect_session(checkpoint.session if checkpoint is not None else None)
        self._checkpoints.start_from(checkpoint)
        layer = self._to_load
        if origin is not None and checkpoint == origin.checkpoint and layer is not None and layer.rung == "replay":
            begin, digests = self._find_replay_origin(layer, origin), origin.checkpoint.digests
            if begin is not None and digests is not None and await self._replay(begin, origin, digests):
                return
        await self._sandbox.provision(checkpoint)

    def _expect_session(self, layer: SessionLayer | None) -> None:
        """Prepare for a sandbox in which no agent runs yet, and which has this session to resume; None for none."""
        self._connected, self._to_load = None, layer

    async def connect(self, step: Step) -> None:
        """Open or resume the session of a step, unless it is open already.

        A session of a checkpoint is resumed: loaded, or replayed in a new sandbox, or as a last resort replaced by a
        fresh one. The start of a session that may be replayed later gets a checkpoint.

        Args:
            step: The next step.
        """
        if step.session == self._connected:
            return
        self._phases.begin("connect")
        state, origin = self._state, self._state.branch_origin
        layer, self._to_load = self._to_load, None
        load = layer if layer is not None and layer.session.index == step.session else None
        if load is not None and load.begun is not None and load.begun.steps_done == step.index:
            # The session had no turn yet, and some agents do not store such a session. A new one is opened.
            load = None
        begin = None
        if load is not None and load.rung == "load" and origin is not None:
            begin = self._find_replay_origin(load, origin)
        connected = await self._open(step.session, load, may_replay=begin is not None)
        if load is not None and begin is not None and origin is not None and connected.digests is not None:
            if await self._replay(begin, origin, connected.digests):
                return
            await self._sandbox.provision(origin.checkpoint)
            self._to_load = None
            load = load.model_copy(update={"rung": "replay"})
            connected = await self._open(step.session, load)
        state.resume_mode = connected.rung or state.resume_mode
        if connected.rung == "load" and load is not None:
            is_parents = origin is not None and load == origin.checkpoint.session
            state.session_begin = load.begun if is_parents else None
            return
        state.session_begin = SessionBegin(steps_done=step.index)
        has_more = any(other.session == step.session for other in state.plan.steps[step.index + 1 :])
        if connected.later == "replay" and has_more and state.config is not None:
            checkpoint = await self._checkpoints.take_session_begin()
            state.session_begin = state.session_begin.model_copy(update={"checkpoint": checkpoint})

    async def _open(self, session: int, load: SessionLayer | None, *, may_replay: bool = False) -> Connected:
        """Run the activity that opens or resumes a session, and record the session in the state.

        Args:
            session: Index of the session.
            load: Session of the checkpoint, to be resumed; None to open a new one.
            may_replay: Whether to open nothing if it can't be loaded, because a replay is tried next.
        """
        state = self._state
        request = ConnectInput(
            **self._sandbox.fields,
            session=session,
            load=load,
            may_replay=may_replay,
            not_replayed=self._not_replayed,
        )
        limit = state.spec.run.sandbox_setup_timeout + state.spec.options.margin_sec
        connected: Connected = await self._sandbox.run(temporal_names.CONNECT, request, Connected, limit)
        state.warnings += connected.warnings
        self._not_replayed = None
        if connected.session is not None or not may_replay:
            self._connected = session
        if connected.session is not None:
            state.sessions.append(connected.session)
        return connected

    # --- turns ----------------------------------------------------------------------------------------------

    async def run_turn(self, step: Step, branch_at: Callable[[Question], Awaitable[bool]]) -> TurnResult:
        """Run the agent's turn of a step to its end, with its questions answered by users.

        Args:
            step: The next step, whose session is open.
            branch_at: Called with each question of the agent. If children answer it, returns True after they have
                ended.

        Returns:
            The result of the turn, failures of the agent included. Its `question` is set only if children have answered
            that: the turn is not over then.
        """
        past = self._state.steps[-1].step if self._state.steps else None
        resumes = past is not None and not past.scored and past.session == step.session

        async def respond(question: Question, given: Sequence[Answer]) -> Answer | None:
            if await branch_at(question):
                return None
            return self._answer_as_child(step, question, given) or await self._await_user_answer(question)

        turn, answers = await self._drive(step, respond, resumes=resumes)
        begin = self._state.session_begin
        if turn.question is None and answers and begin is not None:
            # A replay of the session gives the same answers.
            self._state.session_begin = begin.model_copy(update={"answers": begin.answers | {step.index: answers}})
        return turn

    async def _drive(
        self, step: Step, respond: Respond, *, resumes: bool, replayed: TakenBefore | None = None
    ) -> tuple[TurnResult, list[Answer]]:
        """Drive one turn until it ends, or until a question gets no answer.

        Args:
            step: The step of the turn.
            respond: Called with each question of the agent, for its answer.
            resumes: Whether the session has had a turn and nothing was done to the sandbox since, so that the step
                needs no setup.
            replayed: The parent's turn, if this one is a replay of it; else None.

        Returns:
            The result of the turn, and the answers to its questions. After a question without an answer, the result
            holds that question.
        """
        state, options = self._state, self._state.spec.options
        margin, summary = (options.margin_sec, step.name) if replayed is None else (options.replay_margin_sec, "again")
        limit = (step.timeout_sec or state.spec.run.deadline_sec) + margin
        work = StepInput(**self._sandbox.fields, step=step, session=state.session, goes_on=resumes, before=replayed)
        while True:
            turn: TurnResult = await self._sandbox.run(temporal_names.EXECUTE, work, TurnResult, limit, summary)
            answer = await respond(turn.question, work.answers) if turn.question is not None else None
            if answer is None:
                return turn, work.answers
            work = work.model_copy(update={"answers": [*work.answers, answer]})

    def update_resume_mode(self, step: Step, turn: TurnResult) -> None:
        """Correct the state's resume mode by a turn's result.

        Args:
            step: The step of the turn.
            turn: Result of the turn: whether a replay has diverged, and whether the session's first model call began
                with the parent's last one.
        """
        state, origin = self._state, self._state.branch_origin
        diverged = turn.replay is not None and turn.replay.divergence is not None
        if origin is not None and origin.child.answer is not None and step.index == origin.checkpoint.steps_done:
            # The turn was replayed up to the question, whatever mode the session was resumed in before.
            state.resume_mode = "fresh" if diverged or state.resume_mode == "fresh" else "replay"
        if turn.prefix == "different":
            # The model got another context than in the parent's session: the session was not resumed.
            state.resume_mode = "fresh"

    # --- questions ------------------------------------------------------------------------------------------

    def _answer_as_child(self, step: Step, question: Question, given: Sequence[Answer]) -> Answer | None:
        """Return the answer of a child under the policy `ask_user`; None for other rollouts, whose users answer.

        The child answers the question at which it starts by its own `ChildSpec`, and each later one by the first option
        that allows the agent to continue. `given`: its answers to earlier questions of the turn.
        """
        origin, config = self._state.branch_origin, self._state.config
        if origin is None or config is None or not isinstance(config.policy, OnAskUser):
            return None
        if origin.child.answer is not None and step.index == origin.checkpoint.steps_done and not given:
            return origin.child.answer.model_copy(update={"question": question.id})
        kinds = {option.kind: option.id for option in reversed(question.options)}
        allowed = kinds.get("allow_once") or kinds.get("allow_always")
        return Answer(question=question.id, option=allowed or next((one.id for one in question.options), None))

    async def _await_user_answer(self, question: Question) -> Answer:
        """Wait for a user's valid answer, and for verification previews to end. Return the answer.

        The deadline's clock stops meanwhile.
        """
        # The turn may have reached its question although it was cancelled: then nothing else would end this wait.
        self._state.check_stop()
        self._state.question = question
        self._phases.on_update()
        try:
            with pause_deadline("an answer"):
                await workflow.wait_condition(lambda: self.answers.has(question) and not self.previews)
        finally:
            self._state.question = None
            self._phases.on_update()
        return self.answers.get(question)

    async def preview(self) -> VerifyResult:
        """Return how the verifier would score the world now, while the agent waits for an answer. Changes nothing.

        Raises:
            ApplicationError: The rollout has ended or lost its host (`UsageError`), or the verifier has failed
                (`VerifierError`). An error of another type would fail the workflow task instead of the update.
        """
        state = self._state
        step = state.plan.steps[len(state.steps)]
        self._n_previews += 1
        work = SoftVerifyInput(
            **self._sandbox.fields,
            step=step,
            run_id=state.run_id,
            number=self._n_previews,
            baseline=state.baseline,
        )
        limit = step.verify_timeout_sec + state.spec.options.margin_sec
        preview = asyncio.create_task(
            self._sandbox.run(temporal_names.SOFT_VERIFY, work, VerifyResult, limit, step.name)
        )
        # Another sandbox has another list: this preview must leave the one that it was added to.
        previews = self.previews
        previews.append(preview)
        try:
            result: VerifyResult = await preview
        except (asyncio.CancelledError, HostGoneError) as error:
            raise ApplicationError("the rollout has ended, or lost its host", type=UsageError.__name__) from error
        except ActivityError as error:
            raise ApplicationError(make_failure(error, "verify").message, type=VerifierError.__name__) from error
        finally:
            previews.remove(preview)
        return result

    # --- replay ---------------------------------------------------------------------------------------------

    def _find_replay_origin(self, layer: SessionLayer, origin: BranchOrigin) -> SessionBegin | None:
        """Return the origin of the parent's session, from which a child may replay it; None if it may not.

        Args:
            layer: The session in the checkpoint that the child starts from.
            origin: Origin of the child.
        """
        begin, config = layer.begun, self._state.config
        if begin is None or layer != origin.checkpoint.session or begin.steps_done >= origin.checkpoint.steps_done:
            return None
        least = config.min_session_rung if config is not None else "fresh"
        if not is_enough("replay", least) or origin.child.model is not None:
            # Requests to another model differ from the recorded ones from the first call on.
            return None
        is_reachable = begin.checkpoint is not None or begin.steps_done == 0
        return begin if is_reachable and layer.session.model_access != "direct" else None

    async def _replay(self, begin: SessionBegin, origin: BranchOrigin, digests: WorldDigests) -> bool:
        """Replay the parent's session in a new sandbox, from the session's origin on.

        Args:
            begin: Origin of the session.
            origin: Origin of the child, with the steps to replay.
            digests: Digests of the world that the replay must reach.

        Returns:
            Whether the replay reached that world. If not, its sandbox is of no use: the caller provisions another one.
        """
        await self._sandbox.provision(begin.checkpoint, begin)
        self._to_load = None
        await self._open(origin.before[begin.steps_done].step.session, None)
        why = await self._replay_turns(begin, origin, digests)
        if why is None:
            self._state.resume_mode, self._state.session_begin = "replay", begin
            return True
        self._not_replayed = f"the agent's session could not be driven to where it was: {why}"
        self._state.sessions.pop()
        self._expect_session(origin.checkpoint.session)
        return False

    async def _replay_turns(self, begin: SessionBegin, origin: BranchOrigin, digests: WorldDigests) -> str | None:
        """Run the turns of the parent's session again.

        Returns:
            Why the replay has failed: a new question, or a failure such as a divergence. None if it succeeded.
        """
        taken = origin.before[begin.steps_done : origin.checkpoint.steps_done]
        for number, outcome in enumerate(taken):
            respond = partial(self._repeat_answer, iter(begin.answers.get(outcome.step.index, [])))
            is_last = number + 1 == len(taken)
            replayed = TakenBefore(stop_reason=outcome.turn.stop_reason, is_last=is_last, digests=digests)
            turn, _ = await self._drive(outcome.step, respond, resumes=number > 0, replayed=replayed)
            if turn.question is not None:
                return f"the agent asks what its parent's did not: {turn.question.text}"
            if turn.failure is not None:
                return turn.failure.message
        return None

    async def _repeat_answer(
        self, recorded: Iterator[Answer], question: Question, given: Sequence[Answer]
    ) -> Answer | None:
        """Return the next recorded answer of the parent's turn, with the id of `question`; None after the last one."""
        answer = next(recorded, None)
        return answer.model_copy(update={"question": question.id}) if answer is not None else None
