"""The sessions of a rollout's agent: opened, and in a child gone on with in the best way that there is.

A new process loads the session in the copy of its world. Where it does not, a new session is driven to where that was:
in the world where it began, through the same turns, its model answered from the record. It must lead to the same world;
else the agent begins anew in the copy, where less than that was not refused.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import Connected, ConnectInput, StepInput, TakenBefore
    from benchflow.contracts.branch import BranchOrigin
    from benchflow.contracts.checkpoint import Checkpoint, Rung, SessionBegin, SessionLayer, WorldDigests, is_enough
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import AgentSession, Answer, Step, TurnResult
    from benchflow.contracts.sandbox import SandboxRef


class Place(Protocol):
    """The sandbox where sessions are held, and the work in it."""

    sandbox: SandboxRef | None
    warnings: list[str]

    @property
    def spec(self) -> RolloutSpec:
        """As activities in this sandbox are to have it."""
        ...

    def on_host(self, name: str, arg: Any, result: Any, limit: float, summary: str | None = None) -> Awaitable[Any]: ...

    async def have(self, checkpoint: Checkpoint | None, replays: SessionBegin | None = None) -> None:
        """Have a sandbox that begins with this, or with the task's image, in place of the one that there is, if any.

        replays: a session is to be driven in it to where another one was.
        """
        ...

    async def keep_begin(self) -> Checkpoint:
        """Keep the state in which a session is about to begin."""
        ...


def replaying(spec: RolloutSpec, begun: SessionBegin | None) -> RolloutSpec:
    """What the activities of a child are told while a session is driven to where its parent's was, or is not."""
    own = spec.branch
    if own is None or own.replays == begun:
        return spec
    return spec.model_copy(update={"branch": own.model_copy(update={"replays": begun})})


class Sessions:
    """connected: which session the agent is in. rung: how it went on with a parent's, None where it did not have to.

    begins: of what was kept of the states where sessions have begun.
    """

    def __init__(self, spec: RolloutSpec, place: Place) -> None:
        self._own = spec.branch
        self._config = spec.run.branch
        self._place = place
        self._to_load = self._own.checkpoint.session if self._own is not None else None
        self._begun: SessionBegin | None = None
        self._not_replayed: str | None = None
        self.connected: int | None = None
        self.all: list[AgentSession] = []
        self.rung: Rung | None = None
        self.begins: list[Checkpoint] = []

    @property
    def current(self) -> AgentSession | None:
        return self.all[-1] if self.all else None

    @property
    def begun(self) -> SessionBegin | None:
        """Where the current session did; None where nobody can go back there."""
        return self._begun if self.all else None

    def go_on_with(self, layer: SessionLayer | None) -> None:
        """The sandbox is another one, in which there is what is known of this session."""
        self.connected, self._to_load = None, layer

    def note_answers(self, step: Step, answers: list[Answer]) -> None:
        """What the agent was answered in a turn of the current session."""
        if answers and self._begun is not None:
            given = self._begun.answers | {step.index: answers}
            self._begun = self._begun.model_copy(update={"answers": given})

    def note_turn(self, step: Step, turn: TurnResult) -> None:
        """What a turn has shown of how the session goes on."""
        own = self._own
        diverged = turn.replay is not None and turn.replay.divergence is not None
        if own is not None and own.child.answer is not None and step.index == own.checkpoint.steps_done:
            # It was driven to the question; what it was before does not matter any more.
            self.rung = "fresh" if diverged or self.rung == "fresh" else "replay"
        if turn.prefix == "different":
            # It is not the session that its parent had.
            self.rung = "fresh"

    # --- opening -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Have a sandbox; in a child whose session does not load, one where it was driven to where its parent's was."""
        layer, own = self._to_load, self._own
        if own is None or layer is None or layer.rung != "replay":
            await self._place.have(own.checkpoint if own is not None else None)
            return
        begun, digests = self._goes_back_to(layer, own), own.checkpoint.digests
        if begun is None or digests is None or not await self._replay(begun, own, digests):
            await self._place.have(own.checkpoint)

    async def connect(self, step: Step, steps: list[Step]) -> None:
        """Make the agent ready for the steps of a session; a child's first may be one that its parent has begun.

        step: the next one, of all `steps`.
        """
        layer = self._to_load
        load = layer if layer is not None and layer.session.index == step.session else None
        self._to_load = None
        if load is not None and load.begun is not None and load.begun.steps_done == step.index:
            # Nothing was said in it yet, and some agents keep no session of that kind.
            load = None
        begun = None
        if load is not None and load.rung == "load" and self._own is not None:
            begun = self._goes_back_to(load, self._own)
        connected = await self._open(step.session, load, may_replay=begun is not None)
        if load is not None and begun is not None and self._own is not None and connected.digests is not None:
            if await self._replay(begun, self._own, connected.digests):
                return
            await self._place.have(self._own.checkpoint)
            self._to_load = None
            load = load.model_copy(update={"rung": "replay"})
            connected = await self._open(step.session, load)
        self.rung = connected.rung or self.rung
        if connected.rung in ("load", "process") and load is not None:
            mine = self._own is not None and load == self._own.checkpoint.session
            self._begun = load.begun if mine else None
            return
        self._begun = SessionBegin(steps_done=step.index)
        goes_on = any(other.session == step.session for other in steps[step.index + 1 :])
        if connected.later == "replay" and goes_on and self._config is not None:
            kept = await self._place.keep_begin()
            self.begins.append(kept)
            self._begun = self._begun.model_copy(update={"checkpoint": kept})

    async def _open(self, session: int, load: SessionLayer | None, *, may_replay: bool = False) -> Connected:
        place = self._place
        assert place.sandbox is not None
        request = ConnectInput(
            spec=place.spec,
            sandbox=place.sandbox,
            session=session,
            load=load,
            may_replay=may_replay,
            not_replayed=self._not_replayed,
        )
        limit = place.spec.run.sandbox_setup_timeout + place.spec.options.margin_sec
        # Of a history that is older than this answer, none.
        connected: Connected = await place.on_host(names.CONNECT, request, Connected | None, limit) or Connected()
        place.warnings += connected.warnings
        self._not_replayed = None
        if connected.session is not None or not may_replay:
            self.connected = session
        if connected.session is not None:
            self.all.append(connected.session)
        return connected

    # --- driving one to where another was ----------------------------------------------------------------

    def _goes_back_to(self, layer: SessionLayer, own: BranchOrigin) -> SessionBegin | None:
        """From where a session may be driven to where its parent's was; None where it cannot, or has no way to go."""
        begun, done = layer.begun, own.checkpoint.steps_done
        least = self._config.min_session_rung if self._config is not None else "fresh"
        if begun is None or layer != own.checkpoint.session or begun.steps_done >= done:
            return None
        if not is_enough("replay", least) or own.child.model is not None:
            # Another model is asked otherwise from the first call on.
            return None
        can_be_gone_to = begun.checkpoint is not None or begun.steps_done == 0
        return begun if can_be_gone_to and layer.session.model_access != "direct" else None

    async def _replay(self, begun: SessionBegin, own: BranchOrigin, digests: WorldDigests) -> bool:
        """Whether a new session is now where the parent's was, and its world what that was. digests: of that."""
        await self._place.have(begun.checkpoint, begun)
        self._to_load = None
        await self._open(own.before[begun.steps_done].step.session, None)
        why = await self._drive(begun, own, digests)
        if why is None:
            self.rung, self._begun = "replay", begun
            return True
        self._not_replayed = f"the agent's session could not be driven to where it was: {why}"
        self.all.pop()
        self.go_on_with(own.checkpoint.session)
        return False

    async def _drive(self, begun: SessionBegin, own: BranchOrigin, digests: WorldDigests) -> str | None:
        """Take the turns of the parent's session again; why this is not where they led, None when it is."""
        place = self._place
        assert place.sandbox is not None
        taken = own.before[begun.steps_done : own.checkpoint.steps_done]
        for number, outcome in enumerate(taken):
            step, is_last = outcome.step, number + 1 == len(taken)
            before = TakenBefore(stop_reason=outcome.turn.stop_reason, is_last=is_last, digests=digests)
            work = StepInput(
                spec=place.spec,
                sandbox=place.sandbox,
                step=step,
                session=self.current,
                goes_on=number > 0,
                before=before,
            )
            given = list(begun.answers.get(step.index, []))
            limit = (step.timeout_sec or place.spec.run.deadline_sec) + place.spec.options.replay_margin_sec
            while True:
                turn: TurnResult = await place.on_host(names.EXECUTE, work, TurnResult, limit, "again")
                if turn.question is None:
                    break
                if not given:
                    return f"the agent asks what its parent's did not: {turn.question.text}"
                answer = given.pop(0).model_copy(update={"question": turn.question.id})
                work = work.model_copy(update={"answers": [*work.answers, answer]})
            if turn.failure is not None:
                return turn.failure.message
        return None
