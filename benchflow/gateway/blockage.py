"""The times in which the gateway itself keeps agents' calls waiting: nobody works in them."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

FROZEN_SEC = 10.0
"""Seconds between two looks that say that nobody was there between them. Fewer may be due to load."""

JOINED_SEC = 1.0
"""Seconds between two waits that are taken for one: between two attempts to write, other calls have their turn."""

MAX_INTERVALS = 1000
"""Waits that are told of a rollout. Of more, the last ones are told as one that has lasted all the time."""

_LOOK_EVERY_SEC = 1.0


class Blockage:
    """The times in which at least one call of a rollout waited for the gateway itself."""

    def __init__(self) -> None:
        self.intervals: list[tuple[float, float]] = []
        """Begin and end of each, of this host's monotonic clock, in order of their ends."""

    def add(self, began: float) -> None:
        """Add the time from `began`, of the monotonic clock, until now."""
        last_began, last_ended = self.intervals[-1] if self.intervals else (math.inf, -math.inf)
        if began <= last_ended + JOINED_SEC or len(self.intervals) >= MAX_INTERVALS:
            self.intervals.pop()
            began = min(began, last_began)
        self.intervals.append((began, time.monotonic()))


class AbsenceWatch:
    """Counts the time in which the gateway was frozen, or did not run, as a wait of all calls."""

    def __init__(self, blockages: Callable[[], Iterable[Blockage]], record: Path) -> None:
        """Begin to watch.

        Args:
            blockages: Called after each absence. Returns what the absence is counted in.
            record: File in which the next gateway finds when this one was last there.
        """
        self._blockages = blockages
        self._record = record
        self._seen = time.monotonic()

    def resume(self) -> None:
        """Count the time since the last look of an earlier gateway, if there was one since this host was started."""
        with suppress(OSError, ValueError):
            self._seen = min(self._seen, float(self._record.read_text()))
        self.look()

    def look(self) -> None:
        """Count the time since the last look, if the gateway was away in it."""
        seen, self._seen = self._seen, time.monotonic()
        if self._seen - seen > FROZEN_SEC:
            for blockage in self._blockages():
                blockage.add(seen)

    async def run(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            self.look()
            self._note()
            await asyncio.sleep(_LOOK_EVERY_SEC)

    def _note(self) -> None:
        # In place, and of one length: a disk that became full has space for it. No call depends on it.
        with suppress(OSError):
            fd = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, f"{self._seen:020.3f}".encode())
            finally:
                os.close(fd)
