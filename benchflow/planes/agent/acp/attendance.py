"""The time of a turn in which no worker attends to the agent: its limits do not count it.

Nobody attends while a person is asked, while the worker is frozen, perhaps with its whole host, and from a worker's end
to the start of the next one.
"""

from __future__ import annotations

import time

from benchflow.planes.agent.acp.notes import Notes
from benchflow.planes.sandbox.timeouts import FROZEN_SEC

NOTE_EVERY_SEC = 2.0


class Attendance:
    """Records when a worker attends to a turn, in a note that the next worker reads."""

    def __init__(self, notes: Notes, name: str) -> None:
        """Begin or resume the record.

        Args:
            notes: Of the agent's process.
            name: Of the note; one for each turn.
        """
        self._notes, self._name = notes, name
        noted = notes.noted(name)
        self.missed_sec: float = noted["missed"] if noted else 0.0
        """Seconds of the turn so far in which nobody attended."""
        self._seen: float = noted["seen"] if noted else time.monotonic()
        self._has_left: bool = noted["left"] if noted else False
        self._noted_at = self._seen
        if noted is None:
            self._note()

    def look(self) -> bool:
        """Record that a worker attends now. Return True if the time since the last look was not attended."""
        now = time.monotonic()
        gap = now - self._seen
        was_missed = self._has_left or gap > FROZEN_SEC
        if was_missed:
            self.missed_sec += gap
        self._seen, self._has_left = now, False
        if was_missed or now - self._noted_at >= NOTE_EVERY_SEC:
            self._note()
        return was_missed

    def leave(self) -> None:
        """Record that the turn waits for a person, until the next look."""
        self.look()
        self._has_left = True
        self._note()

    def _note(self) -> None:
        self._notes.keep(self._name, {"missed": self.missed_sec, "seen": self._seen, "left": self._has_left})
        self._noted_at = self._seen
