"""A Python function as an agent: its sessions and turns, which another worker resumes step by step."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchflow.contracts.agent import (
    AgentPlace,
    AskUser,
    ModelRoute,
    RolloutAgent,
    Session,
    Stop,
    StopReason,
    TurnCounts,
    TurnRequest,
    Unanswered,
)
from benchflow.contracts.failures import error_of, failure_of
from benchflow.contracts.rollout_records import AgentSession, Failure
from benchflow.errors import AgentError, AgentExitError, AgentOutputError
from benchflow.planes.agent.account import create_session_record
from benchflow.planes.agent.agent_settings import find_endpoint
from benchflow.planes.agent.function.function_turn import AgentTurn
from benchflow.planes.agent.function.recorded_steps import MEMORY, OVER, Steps, list_started_commands
from benchflow.planes.agent.function.thread import Act, ActingThread
from benchflow.planes.agent.notes import Message, Notes, SessionFiles
from benchflow.planes.agent.question_answers import make_answerer
from benchflow.planes.agent.turn_limits import DEFAULT_TIMEOUTS, LimitClock, note_stop, read_stop
from benchflow.planes.sandbox.timeouts import Attendance

MAX_MEMORY = 48 * 1024
"""Maximum bytes of a session's memory as JSON. Each checkpoint carries it."""

_POLL_INTERVAL = 0.2
"""Seconds between two checks of a running turn."""
_SILENT_SEC = 1.0
"""Seconds of silence after which a function whose turn was stopped is taken to have no more recorded steps to repeat.
"""


class FunctionAgent(RolloutAgent):
    """An agent that is a function. It acts from the worker, by commands in the sandbox."""

    resume_mode = "load"

    def __init__(self, place: AgentPlace, act: Act) -> None:
        """Make it. act: the function."""
        super().__init__(place)
        self._act = act

    async def open(self, index: int) -> AgentSession:
        """Open the rollout's session number `index`, or return it if it is open."""
        return await self._open(index, {})

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        """Open a session with the memory that `capture` returned in the sandbox that this one is a copy of."""
        return await self._open(index, dict(captured or {}))

    async def _open(self, index: int, memory: Message) -> AgentSession:
        session = await create_session_record(self.place, index)
        notes = self._get_notes(session.directory)
        notes.make()
        notes.write_once(MEMORY, memory)
        return session

    async def session(self, held: AgentSession) -> Session:
        """Return a handle of an open session."""
        return FunctionSession(self.place, held, self._get_notes(held.directory), self._act)

    def _get_notes(self, name: str) -> Notes:
        """Return the notes of the session in this directory."""
        return Notes(SessionFiles.from_directory(self.place.directory).join(name).own_notes)


class FunctionSession(Session):
    """A handle of a session with a function: its memory, and its recorded steps."""

    def __init__(self, place: AgentPlace, held: AgentSession, notes: Notes, act: Act) -> None:
        """Make it.

        Args:
            place: Place of the agent.
            held: The session, as it was opened.
            notes: Notes of the session.
            act: The function.
        """
        self.counts = TurnCounts()
        self._place = place
        self._held = held
        self._notes = notes
        self._act = act
        self._answer = make_answerer(place.permissions)

    async def was_begun(self, turn: int) -> bool:
        """Return whether a turn was prompted, by any process of the engine."""
        return self._notes.read(f"prompt-{turn}") is not None

    def on_ask_user(self, answer: AskUser) -> None:
        """Set the callback that answers the agent's questions."""
        self._answer = answer

    def cancel(self, turn: int) -> None:
        """Request the end of a turn, whichever process runs it."""
        note_stop(self._notes, f"stop-{turn}", "cancelled")

    async def capture(self) -> dict[str, Any] | None:
        """Return the memory after the last turn."""
        return self._read_memory()

    def positions(self) -> Mapping[str, int | str]:
        """Return the number of recorded and started steps."""
        return {"the agent's steps": sum(1 for _ in self._notes.directory.glob("*step-*.json"))}

    async def end(self) -> None:
        """Forbid further steps, and kill the commands of all turns."""
        # The files of a session were removed with its sandbox, and must not be made again.
        if self._notes.directory.is_dir():
            # The note keeps a worker that was frozen from further steps.
            self._notes.write_once(OVER, {})
            await self._kill(None)

    async def _kill(self, turn: int | None) -> None:
        """Kill the commands of a turn, or of all (None), with their descendants."""
        for name in list_started_commands(self._notes, turn):
            await self._place.sandbox.kill_once(f"agent-{self._held.directory}-{name}")

    # --- a turn ----------------------------------------------------------------------------------------------

    async def prompt(self, turn: TurnRequest) -> StopReason:
        """Run a turn to its end, or resume it, and return why it ended. The end is recorded once.

        Raises:
            AgentExitError: The agent was ended before, or the function raised an exception.
            AgentOutputError: Its memory or results are too large.
            Unanswered: It waits for an answer of its user.
        """
        number, notes = turn.number, self._notes
        self.counts = TurnCounts()
        if not await self.was_begun(number) and notes.read(OVER) is not None:
            raise AgentExitError("the agent was ended, and takes no more turns")
        # For another process of this host, too, the turn began at this time of the monotonic clock.
        started = float(notes.write_once(f"prompt-{number}", {"at": time.monotonic(), "prompt": turn.prompt})["at"])
        ended = notes.read(f"ended-{number}")
        if ended is not None and turn.skip(ended["lines"]):
            self.counts.tool_calls = set(ended["tool_calls"])
        else:
            ended = notes.write_once(f"ended-{number}", await self._run_turn(turn, started))
        if ended["failure"] is not None:
            raise error_of(Failure.model_validate(ended["failure"]))
        return StopReason(ended["reason"], ended["ended_by"])

    async def _run_turn(self, turn: TurnRequest, started: float) -> Message:
        """Call the function, and return the record of the turn's end. Raise an error that does not end the turn."""
        acting = AgentTurn(
            turn,
            session=self._held,
            place=self._place,
            model=self._find_route(),
            memory=self._read_memory(before=turn.number),
            steps=Steps(self._notes, turn.number),
            answer=self._answer,
            counts=self.counts,
        )
        memory = copy.deepcopy(acting.memory)
        thread = ActingThread(self._act, acting)
        reason, failure = "end_turn", None
        try:
            stop = await self._watch(turn, thread, started)
        finally:
            thread.cancel()
        if stop is not None:
            await self._kill(turn.number)
            reason = "cancelled" if stop == "cancelled" else "timeout"
        else:
            try:
                reason = thread.get_result() or reason
                memory = _check_memory(acting.memory)
            except AgentError as error:
                failure = failure_of(error).model_dump(mode="json")
        return {
            "reason": reason,
            "ended_by": stop,
            "failure": failure,
            "memory": memory,
            "lines": acting.lines,
            "tool_calls": sorted(self.counts.tool_calls),
        }

    def _find_route(self) -> ModelRoute:
        """Return the route to the model, with the name as the endpoint spells it."""
        place = self._place
        if place.access == "none":
            return ModelRoute()
        route = place.route()
        return replace(route, name=find_endpoint(place.record, route.name, route.base_url)[1])

    async def _watch(self, turn: TurnRequest, thread: ActingThread, started: float) -> Stop | None:
        """Wait until the function has ended, or its turn is to be ended.

        Returns:
            Why the turn is ended; None if the function has ended.
        """
        note = f"stop-{turn.number}"
        if (stop := read_stop(self._notes, note)) is not None:
            # The function repeats its lines, up to the first step that is not recorded.
            give_up_at = time.monotonic() + DEFAULT_TIMEOUTS.cancel
            while not await thread.wait_for_end(_POLL_INTERVAL) and time.monotonic() < give_up_at:
                if time.monotonic() - thread.turn.heard_at > _SILENT_SEC:
                    break
            return stop
        attendance = Attendance(self._notes.get_path(f"attended-{turn.number}"))
        clock = LimitClock(turn.limits, self._notes, note)
        acting = thread.turn
        try:
            while stop is None:
                if await thread.wait_for_end(_POLL_INTERVAL):
                    # Its next step may have been refused because of a stop that this loop has not seen yet.
                    return read_stop(self._notes, note) if thread.was_cancelled else None
                if acting.failure is not None:
                    await thread.wait_for_end(DEFAULT_TIMEOUTS.cancel)
                    return None
                if attendance.poll():
                    acting.heard_at = time.monotonic()
                stop = read_stop(self._notes, note) or await clock.check(started, attendance, acting.heard_at)
        finally:
            if isinstance(acting.failure, Unanswered):
                attendance.suspend()
        thread.cancel()
        await thread.wait_for_end(DEFAULT_TIMEOUTS.cancel)
        return stop

    # --- its memory ------------------------------------------------------------------------------------------

    def _read_memory(self, before: int | None = None) -> dict[str, Any]:
        """Return the memory after the last turn, or after the last one before the turn `before`."""
        ended = (int(path.stem.removeprefix("ended-")) for path in self._notes.directory.glob("ended-*.json"))
        last = max((turn for turn in ended if before is None or turn < before), default=None)
        noted = self._notes.read(MEMORY) if last is None else (self._notes.read(f"ended-{last}") or {})["memory"]
        return noted or {}


def _check_memory(memory: Any) -> Message:
    """Return an agent's memory as JSON reads it again.

    Raises:
        AgentExitError: It is not a JSON object.
        AgentOutputError: It is larger than `MAX_MEMORY`.
    """
    try:
        text = json.dumps(memory, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentExitError(f"the agent's memory is no JSON: {error}", remedy="keep plain values in it") from error
    if not isinstance(memory, dict):
        raise AgentExitError("the agent's memory is no table", remedy="keep what it remembers under names")
    if len(text) > MAX_MEMORY:
        raise AgentOutputError(
            f"the agent's memory has more than {MAX_MEMORY} bytes",
            key="memory",
            remedy="keep what is large in files of the sandbox",
        )
    content: Message = json.loads(text)
    return content
