"""How long a turn may take, what an agent is given beside that, and the note of why we ended a turn: whoever takes it
over must not believe that the agent ended it by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from benchflow.planes.agent.acp.notes import Notes

Stop = Literal["wall_clock", "idle", "cancelled"]
ASK_EVERY_SEC = 1.0
"""Seconds between two times that it is asked for what a turn waits, while one of its limits seems reached."""

_STOPS: tuple[Stop, ...] = ("wall_clock", "idle", "cancelled")


@dataclass(frozen=True)
class Blocked:
    """For how long the engine itself kept an agent's model calls waiting in one turn."""

    total_sec: float = 0.0
    """Seconds in which at least one call waited."""
    ended_ago_sec: float | None = None
    """Seconds since the last of them, about none while a call waits; None if none ever waited."""


AskBlocked = Callable[[], Awaitable[Blocked | None]]
"""Asks whoever passes on the calls of a turn; None while nobody answers, as then no call passes either."""


@dataclass(frozen=True)
class Limits:
    """Seconds a turn may take, counted from its prompt and without the time that a user took to answer, and may be
    silent. None: no limit. ask_blocked: None where the agent's calls do not pass the engine.
    """

    wall: float | None = None
    idle: float | None = 600.0
    ask_blocked: AskBlocked | None = None

    def reached(self, elapsed: float, silent: float) -> Stop | None:
        """Which of them is passed."""
        if self.wall is not None and elapsed > self.wall:
            return "wall_clock"
        return "idle" if self.idle is not None and silent > self.idle else None


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
        self._blocked_sec = 0.0
        self._unblocked_at = self._asked_at = -math.inf
        self._is_unanswered = False

    async def reached(self, elapsed: float, heard_at: float) -> Stop | None:
        """Return the limit that is reached, and note it.

        Args:
            elapsed: Seconds since the turn's prompt in which it was attended to.
            heard_at: When the agent was last known not to be idle, as the monotonic clock has it.
        """
        now = time.monotonic()
        why = self._passed(now, elapsed, heard_at)
        if why is not None and self._limits.ask_blocked is not None:
            if now - self._asked_at < ASK_EVERY_SEC:
                return None
            if await self._is_blocked(self._limits.ask_blocked):
                return None
            why = self._passed(now, elapsed, heard_at)
        if why is not None:
            note_stop(self._notes, self._stop_note, why)
        return why

    def _passed(self, now: float, elapsed: float, heard_at: float) -> Stop | None:
        return self._limits.reached(elapsed - self._blocked_sec, now - max(heard_at, self._unblocked_at))

    async def _is_blocked(self, ask: AskBlocked) -> bool:
        """Ask. Return whether a call waits for the engine now, for all that is known."""
        before, self._asked_at = self._asked_at, time.monotonic()
        if self._is_unanswered:
            # Whoever was away may not know of it, and less for how long.
            self._blocked_sec += self._asked_at - before
        blocked = await ask()
        self._is_unanswered = blocked is None
        blocked = blocked or Blocked(ended_ago_sec=0.0)
        self._blocked_sec = max(self._blocked_sec, blocked.total_sec)
        if blocked.ended_ago_sec is None:
            return False
        self._unblocked_at = max(self._unblocked_at, self._asked_at - blocked.ended_ago_sec)
        # A wait is told after each of its pieces.
        return blocked.ended_ago_sec < ASK_EVERY_SEC


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
