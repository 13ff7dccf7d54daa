"""The times in which the gateway itself keeps agents' calls waiting: nobody works in them."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from benchflow.disk_writes import write_all
from benchflow.store import storage_errors

FROZEN_SEC = 3.0
"""Seconds between two looks that say that nobody was there between them. Under load that may be said wrongly: calls
waited all the same."""

JOINED_SEC = 1.0
"""Seconds between two waits that are taken for one: between two attempts to write, other calls have their turn."""

MAX_INTERVALS = 150
"""Waits that are told of a rollout. Of more, the last ones are told as one that has lasted all the time."""

_RECORD_BYTES = 8192
"""More than so many intervals need."""

_LOOK_EVERY_SEC = 1.0


class Blockage:
    """The times in which at least one call of a rollout waited for the gateway itself. The next gateway knows them."""

    def __init__(self, record: Path) -> None:
        """Go on with what an earlier gateway has recorded, if there was one.

        Args:
            record: File of the rollout's own.

        Raises:
            StoreError: There is no space for it.
        """
        self._record = record
        self.intervals: list[tuple[float, float]] = _recorded(record)
        """Begin and end of each, of this host's monotonic clock, in order of their ends."""
        with storage_errors(record):
            _write_in_place(record, self._line())

    def add(self, began: float) -> None:
        """Add the time from `began`, of the monotonic clock, until now."""
        last_began, last_ended = self.intervals[-1] if self.intervals else (math.inf, -math.inf)
        if began <= last_ended + JOINED_SEC or len(self.intervals) >= MAX_INTERVALS:
            self.intervals.pop()
            began = min(began, last_began)
        self.intervals.append((began, time.monotonic()))
        with suppress(OSError):
            _write_in_place(self._record, self._line())

    def _line(self) -> bytes:
        # An end is rounded down: one in the future is taken for that of a time before this host was started.
        rows = [[round(began, 3), math.floor(1000 * ended) / 1000] for began, ended in self.intervals]
        text = json.dumps(rows)
        return text.encode().ljust(_RECORD_BYTES)


def _recorded(record: Path) -> list[tuple[float, float]]:
    """Return the intervals in a record; none where there is none that can be read, or this host was started since."""
    with suppress(OSError, ValueError, TypeError):
        intervals = [(float(began), float(ended)) for began, ended in json.loads(record.read_bytes())]
        if all(ended <= time.monotonic() for _, ended in intervals):
            return intervals
    return []


def _write_in_place(file: Path, content: bytes) -> None:
    """Write content of always the same length: a disk that became full has space for it."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)


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
        # No call depends on it.
        with suppress(OSError):
            _write_in_place(self._record, f"{self._seen:020.3f}".encode())
