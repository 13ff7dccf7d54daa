"""How long a turn may take, and the note of why we ended it: whoever takes a turn over must not believe that the agent
ended it by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchflow.planes.agent.acp.wire import Wire

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


def note_stop(wire: Wire, name: str, why: Stop) -> None:
    """Write down why a turn is ended. name: of the note; the first one stays."""
    wire.note(name, {"why": why})


def noted_stop(wire: Wire, name: str) -> Stop | None:
    """Why somebody ended the turn, if somebody did."""
    noted = wire.noted(name)
    return next((why for why in _STOPS if why == noted["why"]), None) if noted else None
