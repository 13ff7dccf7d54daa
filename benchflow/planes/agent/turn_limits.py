"""Time limits of a turn, further timeouts of agents, and the note that the engine has ended a turn.

A worker that takes over the turn must not believe that the agent ended it by itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from benchflow.contracts.agent import AskBlocked, Intervals, Stop, TurnLimits
from benchflow.planes.agent.notes import Notes
from benchflow.planes.sandbox.timeouts import Attendance

ASK_INTERVAL_SEC = 1.0
"""Seconds between two requests for the intervals in which model calls waited, while a limit seems reached."""

_STOPS: tuple[Stop, ...] = ("wall_clock", "idle", "cancelled")


class LimitClock:
    """The clock of a turn's limits, which stands still while the agent waits for the engine.

    To ask for that costs a connection, and most turns reach no limit: so it is asked only when a limit seems reached.
    """

    def __init__(self, limits: TurnLimits, notes: Notes, stop_note: str) -> None:
        """Make it.

        Args:
            limits: Limits of the turn.
            notes: Notes of the turn's process.
            stop_note: Name of the note that says why the turn is ended.
        """
        self._limits = limits
        self._notes = notes
        self._stop_note = stop_note
        self._blocked: Intervals = ()
        self._unanswered: list[tuple[float, float]] = []
        self._asked_at = -math.inf
        self._is_unanswered = False

    async def check(self, started: float, attendance: Attendance, heard_at: float) -> Stop | None:
        """Return the limit that is reached, and note it; None if none is.

        Args:
            started: When the turn's prompt was sent, by the monotonic clock.
            attendance: Seconds in which a worker waited for the turn.
            heard_at: When the agent was last known to be active.
        """
        now = time.monotonic()
        why = self._find_passed_limit(now, started, attendance, heard_at)
        if why is not None and self._limits.ask_blocked is not None:
            if now - self._asked_at < ASK_INTERVAL_SEC or await self._is_blocked(self._limits.ask_blocked):
                return None
            why = self._find_passed_limit(now, started, attendance, heard_at)
        if why is not None:
            note_stop(self._notes, self._stop_note, why)
        return why

    def _find_passed_limit(self, now: float, started: float, attendance: Attendance, heard_at: float) -> Stop | None:
        """Return the limit that is exceeded, by the intervals that are known now."""
        blocked = [*self._blocked, *self._unanswered]
        # Calls may wait while no worker runs, too, if the whole stack is down. Such time counts once.
        missed_sec = _measure_union(attendance.missed, started, now)
        blocked_sec = _measure_union([*blocked, *attendance.missed], started, now) - missed_sec
        unblocked_at = max((ended for _, ended in blocked), default=-math.inf)
        elapsed = now - started - attendance.missed_sec - blocked_sec
        return self._limits.reached(elapsed, now - max(heard_at, unblocked_at))

    async def _is_blocked(self, ask: AskBlocked) -> bool:
        """Ask for the intervals. Return whether a call waits for the gateway now, or the gateway does not answer."""
        self._asked_at = time.monotonic()
        if self._is_unanswered:
            # A gateway that was down may not know of that time.
            self._unanswered[-1] = (self._unanswered[-1][0], self._asked_at)
        blocked = await ask()
        if blocked is None:
            if not self._is_unanswered:
                self._unanswered.append((self._asked_at, self._asked_at))
            self._is_unanswered = True
            return True
        self._is_unanswered = False
        self._blocked = blocked
        # The gateway reports a wait in pieces, after each one.
        return any(self._asked_at - ended < ASK_INTERVAL_SEC for _, ended in blocked)


def _measure_union(intervals: Intervals, since: float, until: float) -> float:
    """Return the seconds between two times that lie in at least one of the intervals."""
    length, counted_to = 0.0, since
    for began, ended in sorted(intervals):
        ended = min(ended, until)
        if ended > counted_to:
            length += ended - max(began, counted_to)
            counted_to = ended
    return length


@dataclass(frozen=True)
class AgentTimeouts:
    """Timeouts of agents besides the limits of their turns, in seconds."""

    silence: float = 0.25
    """Time without output after which a turn that has its answer is over."""

    last_words: float = 5.0
    """Time after its answer at which a turn is over, even if the agent writes on."""

    last_log: float = 2.0
    """Wait for an empty log of an agent to explain an invalid message."""

    cancel: float = 10.0
    """Time in which an agent must stop when asked to."""

    progress_every: float = 2.0
    """Interval between two notes of a turn's progress."""


DEFAULT_TIMEOUTS = AgentTimeouts()


def note_stop(notes: Notes, name: str, why: Stop) -> None:
    """Note why a turn is ended, unless that was noted. name: of the note."""
    notes.write_once(name, {"why": why})


def read_stop(notes: Notes, name: str) -> Stop | None:
    """Return why a turn is ended, as noted by any process; None if it is not."""
    noted = notes.read(name)
    return next((why for why in _STOPS if why == noted["why"]), None) if noted else None
