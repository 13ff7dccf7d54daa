"""How long a turn may take, what an agent is given beside that, and the note of why we ended a turn: whoever takes it
over must not believe that the agent ended it by itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from benchflow.contracts.session import AskBlocked, Intervals, Limits, Stop
from benchflow.planes.agent.notes import Notes
from benchflow.planes.sandbox.timeouts import Attendance

ASK_EVERY_SEC = 1.0
"""Seconds between two times that it is asked for what a turn waits, while one of its limits seems reached."""

_STOPS: tuple[Stop, ...] = ("wall_clock", "idle", "cancelled")


class LimitClock:
    """The clock of a turn's limits, which stands still while the agent cannot but wait for the engine.

    To ask for that costs a connection, and most turns reach no limit: it is asked for only when one seems reached.
    """

    def __init__(self, limits: Limits, notes: Notes, stop_note: str) -> None:
        """Begin or resume.

        Args:
            limits: Of the turn.
            notes: Of the turn's process.
            stop_note: Name of the note of why the turn is ended.
        """
        self._limits = limits
        self._notes = notes
        self._stop_note = stop_note
        self._blocked: Intervals = ()
        self._unanswered: list[tuple[float, float]] = []
        self._asked_at = -math.inf
        self._is_unanswered = False

    async def reached(self, started: float, attendance: Attendance, heard_at: float) -> Stop | None:
        """Return the limit that is reached, and note it.

        Args:
            started: When the turn's prompt was sent, as the monotonic clock has it.
            attendance: Of the turn.
            heard_at: When the agent was last known not to be idle.
        """
        now = time.monotonic()
        why = self._passed(now, started, attendance, heard_at)
        if why is not None and self._limits.ask_blocked is not None:
            if now - self._asked_at < ASK_EVERY_SEC or await self._is_blocked(self._limits.ask_blocked):
                return None
            why = self._passed(now, started, attendance, heard_at)
        if why is not None:
            note_stop(self._notes, self._stop_note, why)
        return why

    def _passed(self, now: float, started: float, attendance: Attendance, heard_at: float) -> Stop | None:
        blocked = [*self._blocked, *self._unanswered]
        # While nobody attends, calls may wait, too: a stack may be away as a whole. That counts once.
        missed_sec = _length(attendance.missed, started, now)
        blocked_sec = _length([*blocked, *attendance.missed], started, now) - missed_sec
        unblocked_at = max((ended for _, ended in blocked), default=-math.inf)
        elapsed = now - started - attendance.missed_sec - blocked_sec
        return self._limits.reached(elapsed, now - max(heard_at, unblocked_at))

    async def _is_blocked(self, ask: AskBlocked) -> bool:
        """Ask. Return whether a call waits for the engine now, for all that is known."""
        self._asked_at = time.monotonic()
        if self._is_unanswered:
            # Whoever was away may not know of it.
            self._unanswered[-1] = (self._unanswered[-1][0], self._asked_at)
        blocked = await ask()
        if blocked is None:
            if not self._is_unanswered:
                self._unanswered.append((self._asked_at, self._asked_at))
            self._is_unanswered = True
            return True
        self._is_unanswered = False
        self._blocked = blocked
        # A wait is told after each of its pieces.
        return any(self._asked_at - ended < ASK_EVERY_SEC for _, ended in blocked)


def _length(intervals: Intervals, since: float, until: float) -> float:
    """Return the seconds between two moments that are in at least one of some intervals."""
    length, counted_to = 0.0, since
    for began, ended in sorted(intervals):
        ended = min(ended, until)
        if ended > counted_to:
            length += ended - max(began, counted_to)
            counted_to = ended
    return length


@dataclass(frozen=True)
class Patience:
    """Seconds that an agent is given beside its turns' limits.

    silence: without output, after which a turn that has its answer is over. last_words: after its answer, when a turn
    is over however much the agent goes on to say. last_log: for an agent's log, as long as it is empty, to say why the
    agent wrote what it should not. cancel: to answer that it has stopped. progress_every: between two notes of how far
    a turn has been taken in.
    """

    silence: float = 0.25
    last_words: float = 5.0
    last_log: float = 2.0
    cancel: float = 10.0
    progress_every: float = 2.0


PATIENCE = Patience()


def note_stop(notes: Notes, name: str, why: Stop) -> None:
    """Write down why a turn is ended. name: of the note; the first one stays."""
    notes.note(name, {"why": why})


def noted_stop(notes: Notes, name: str) -> Stop | None:
    """Why somebody ended the turn, if somebody did."""
    noted = notes.noted(name)
    return next((why for why in _STOPS if why == noted["why"]), None) if noted else None
