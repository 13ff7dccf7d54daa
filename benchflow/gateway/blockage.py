"""Counting the seconds in which the gateway itself keeps agents' calls waiting: nobody works in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

FROZEN_SEC = 10.0
"""Seconds between two looks that say that the process was frozen between them. Fewer may be due to load."""

_LOOK_EVERY_SEC = 1.0


class Blockage:
    """The seconds of one turn in which at least one call waited for the gateway itself.

    Seconds in which several calls waited count once.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero: another turn begins."""
        self.total_sec = 0.0
        self._ended_at: float | None = None

    def add(self, began: float) -> None:
        """Count the time from `began`, of the monotonic clock, until now."""
        now = time.monotonic()
        self.total_sec += now - (began if self._ended_at is None else max(began, self._ended_at))
        self._ended_at = now

    @property
    def ended_ago_sec(self) -> float | None:
        """Return the seconds since the end of the last wait; None if there was none."""
        return None if self._ended_at is None else time.monotonic() - self._ended_at


class FreezeWatch:
    """Counts the time in which this process was frozen as a wait of all calls."""

    def __init__(self, blockages: Callable[[], Iterable[Blockage]]) -> None:
        """Begin to watch.

        Args:
            blockages: Called after each freeze. Returns what the freeze is counted in.
        """
        self._blockages = blockages
        self._seen = time.monotonic()

    def look(self) -> None:
        """Count the time since the last look, if the process was frozen in it."""
        seen, self._seen = self._seen, time.monotonic()
        if self._seen - seen > FROZEN_SEC:
            for blockage in self._blockages():
                blockage.add(seen)

    async def run(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_SEC)
