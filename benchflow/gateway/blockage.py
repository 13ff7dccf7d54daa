"""Times in which the gateway itself keeps agents' calls waiting, so that they do not count as an agent's work."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from benchflow.host_files import overwrite, raise_storage_errors

FROZEN_SEC = 3.0
"""Seconds between two looks from which on the gateway counts as absent between them. Under load that may be wrong, but
calls waited all the same.
"""

JOINED_SEC = 1.0
"""Maximum of seconds between two waits that are joined to one: between two attempts to write, other calls have their
turn.
"""

MAX_INTERVALS = 150
"""Maximum of intervals of a rollout. Beyond it, the last ones are joined to one that covers their gaps, too."""

_RECORD_BYTES = 8192
"""Size of the record: more than the maximum of intervals takes."""

_POLL_INTERVAL_SEC = 1.0


class Blockage:
    """Times in which a call of a rollout waited for the gateway itself. A restarted gateway restores them."""

    def __init__(self, record: Path) -> None:
        """Restore the intervals that an earlier gateway has recorded, if there are any.

        Args:
            record: File of these intervals, of this rollout alone.

        Raises:
            StoreError: The disk has no space for it.
        """
        self._record = record
        self.intervals: list[tuple[float, float]] = _load_intervals(record)
        """Begin and end of each, by this host's monotonic clock, in order of their ends."""
        with raise_storage_errors(record):
            overwrite(record, self._line())

    def add(self, began: float) -> None:
        """Add a wait that began at `began`, by the monotonic clock, and ends now."""
        last_began, last_ended = self.intervals[-1] if self.intervals else (math.inf, -math.inf)
        if began <= last_ended + JOINED_SEC or len(self.intervals) >= MAX_INTERVALS:
            self.intervals.pop()
            began = min(began, last_began)
        self.intervals.append((began, time.monotonic()))
        with suppress(OSError):
            overwrite(self._record, self._line())

    def _line(self) -> bytes:
        """Return the record's content, padded to its constant size."""
        # An end is rounded down: one in the future is taken to be from before a reboot of this host.
        rows = [[round(began, 3), math.floor(1000 * ended) / 1000] for began, ended in self.intervals]
        text = json.dumps(rows)
        return text.encode().ljust(_RECORD_BYTES)


def _load_intervals(record: Path) -> list[tuple[float, float]]:
    """Return the intervals in a record; none if it is missing or invalid, or is from before a reboot of this host."""
    with suppress(OSError, ValueError, TypeError):
        intervals = [(float(began), float(ended)) for began, ended in json.loads(record.read_bytes())]
        if all(ended <= time.monotonic() for _, ended in intervals):
            return intervals
    return []


class AbsenceWatch:
    """Adds times in which the gateway was frozen, or did not run, to the blockages of all rollouts."""

    def __init__(self, blockages: Callable[[], Iterable[Blockage]], record: Path) -> None:
        """Start to watch now.

        Args:
            blockages: Called after each absence. Returns the blockages to which it is added.
            record: File in which the next gateway finds the time of this one's last check.
        """
        self._blockages = blockages
        self._record = record
        self._seen = time.monotonic()

    def resume(self) -> None:
        """Add the time since the last check of an earlier gateway, if there was one since this host was booted."""
        with suppress(OSError, ValueError):
            self._seen = min(self._seen, float(self._record.read_text()))
        self.check()

    def check(self) -> None:
        """Add the time since the last check to every current blockage, if it exceeds `FROZEN_SEC`.

        This process was frozen then: it checks every second.
        """
        seen, self._seen = self._seen, time.monotonic()
        if self._seen - seen > FROZEN_SEC:
            for blockage in self._blockages():
                blockage.add(seen)

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            self.check()
            # For the next gateway. Best effort: no call depends on it.
            with suppress(OSError):
                overwrite(self._record, f"{self._seen:020.3f}".encode())
            await asyncio.sleep(_POLL_INTERVAL_SEC)
