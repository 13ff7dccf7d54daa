"""How long a turn may take, what an agent is given beside that, and the note of why we ended a turn: whoever takes it
over must not believe that the agent ended it by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchflow.planes.agent.acp.notes import Notes

Stop = Literal["wall_clock", "idle", "cancelled"]
_STOPS: tuple[Stop, ...] = ("wall_clock", "idle", "cancelled")


@dataclass(frozen=True)
class Limits:
    """Seconds a turn may take, counted from its prompt and without the time that a user took to answer, and may be
    silent. None: no limit.
    """

    wall: float | None = None
    idle: float | None = 600.0

    def reached(self, elapsed: float, silent: float) -> Stop | None:
        """Which of them is passed."""
        if self.wall is not None and elapsed > self.wall:
            return "wall_clock"
        return "idle" if self.idle is not None and silent > self.idle else None


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
