"""Timeouts that count only the seconds in which a process attends to the work that they limit.

Time is unattended while this process is frozen, perhaps with its whole host, and from the end of a worker to the start
of the next one. For work that outlives a worker there is a record, which the next worker reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow.errors import StoreError
from benchflow.host_files import create_atomic, raise_storage_errors

POLL_INTERVAL_SEC = 2.0
"""Interval in seconds of polls, and of writes of the record."""

FROZEN_SEC = 10.0
"""Seconds between two polls from which the time between them counts as unattended. Shorter gaps may be due to load."""

_SLOW_ROUND_SEC = 1.0
"""Seconds that a longer gap counts in `AwakeDeadline`."""


class Attendance:
    """The time in which a process attends to some work, known by polls at most `FROZEN_SEC` apart."""

    def __init__(self, record: Path | None = None, since: float | None = None) -> None:
        """Start, or resume from the record.

        Args:
            record: File from which the next worker resumes; None for no record. Its directory exists.
            since: Start of the work, by the monotonic clock; None for now.
        """
        self._record = record
        now = time.monotonic()
        self._began = now if since is None else since
        earlier = self._read_record()
        self.missed_sec: float = earlier["missed"] if earlier else 0.0
        """Unattended seconds so far."""
        self.missed: list[tuple[float, float]] = _parse_intervals(earlier)
        """Begin and end of each unattended time, by the monotonic clock."""
        self._seen: float = earlier["seen"] if earlier else self._began
        self._has_left: bool = earlier["left"] if earlier else False
        self._recorded_at = self._seen
        if earlier is None and since is None:
            self._write_record()

    @property
    def attended_sec(self) -> float:
        """Return the attended seconds since the start, up to the last poll."""
        return self._seen - self._began - self.missed_sec

    def poll(self) -> bool:
        """Record that this worker attends now. Return whether the time since its last poll was unattended."""
        now = time.monotonic()
        was_missed = self._has_left or now - self._seen > FROZEN_SEC
        if was_missed and (record := self._read_record()) is not None and record["seen"] > self._seen:
            # Another worker took over while this one was frozen.
            self.missed_sec, self._seen, self._has_left = record["missed"], record["seen"], record["left"]
            self.missed = _parse_intervals(record)
        gap = now - self._seen
        if self._has_left or gap > FROZEN_SEC:
            self.missed_sec += gap
            self.missed.append((self._seen, now))
        self._seen, self._has_left = now, False
        if was_missed or now - self._recorded_at >= POLL_INTERVAL_SEC:
            self._write_record()
        return was_missed

    def suspend(self) -> None:
        """Record that time is unattended until the next poll, as while a person is asked."""
        self.poll()
        self._has_left = True
        self._write_record()

    def _read_record(self) -> dict[str, Any] | None:
        """Return the record; None if there is none."""
        if self._record is None:
            return None
        try:
            record: dict[str, Any] = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            # ValueError: a power cut has left the file without its content.
            return None
        return record

    def _write_record(self) -> None:
        """Write the record, if there is to be one."""
        if self._record is not None:
            record = {"missed": self.missed_sec, "seen": self._seen, "left": self._has_left, "gaps": self.missed}
            with raise_storage_errors(self._record), create_atomic(self._record) as file:
                file.write(json.dumps(record).encode())
        self._recorded_at = self._seen


def _parse_intervals(record: dict[str, Any] | None) -> list[tuple[float, float]]:
    """Return the unattended intervals of a record."""
    # Records of older versions have no `gaps`.
    return [(began, ended) for began, ended in record.get("gaps", ())] if record else []


class AwakeDeadline:
    """A deadline for a loop that checks it in each round, which does not expire while the process is frozen."""

    def __init__(self, seconds: float) -> None:
        """Make it, with the seconds that it lasts from now."""
        self._left = seconds
        self._seen = time.monotonic()

    def is_over(self) -> bool:
        """Return whether the deadline has passed.

        More than `FROZEN_SEC` since the last call count as one second: this process was frozen, or is so slow that one
        more round is due.
        """
        now = time.monotonic()
        gap, self._seen = now - self._seen, now
        self._left -= gap if gap <= FROZEN_SEC else _SLOW_ROUND_SEC
        return self._left <= 0


@asynccontextmanager
async def awake_timeout(seconds: float | None, attendance: Attendance | None = None) -> AsyncIterator[asyncio.Timeout]:
    """Limit a block as `asyncio.timeout` does, but count attended seconds only.

    Work that ended while the process was frozen counts as in time: the timeout leaves a moment in which that is
    noticed.

    Args:
        seconds: The limit; None for none.
        attendance: Attendance to work that started earlier, or that other processes will wait for. By default it starts
            now.

    Raises:
        TimeoutError: The seconds are over.
    """
    async with asyncio.timeout(None) as limit:
        if seconds is None and attendance is None:
            yield limit
            return

        async def expire(attendance: Attendance) -> None:
            await awake_sleep(seconds, attendance)
            limit.reschedule(asyncio.get_running_loop().time())

        ticking = asyncio.ensure_future(expire(attendance or Attendance()))
        try:
            yield limit
        finally:
            ticking.cancel()


async def awake_sleep(seconds: float | None, attendance: Attendance | None = None) -> None:
    """Sleep until a number of attended seconds is reached, polling the attendance meanwhile.

    Args:
        seconds: Attended seconds since the start of the attendance; None to sleep for ever.
        attendance: The attendance; by default it starts now.
    """
    attendance = attendance or Attendance()
    while True:
        # A record that cannot be written now is written later; the limited work does not depend on the disk.
        with contextlib.suppress(StoreError):
            attendance.poll()
        left = math.inf if seconds is None else seconds - attendance.attended_sec
        if left <= 0:
            return
        await asyncio.sleep(min(left, POLL_INTERVAL_SEC))


@asynccontextmanager
async def awake_clock() -> AsyncIterator[Callable[[], float]]:
    """Yield a function that returns the seconds since the start of the block in which this process was not frozen."""
    attendance = Attendance()
    looking = asyncio.ensure_future(awake_sleep(None, attendance))

    def clock() -> float:
        attendance.poll()
        return attendance.attended_sec

    try:
        yield clock
    finally:
        looking.cancel()


async def awake_wait(task: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a task, at most for the seconds while this process is not frozen. Return whether it is done."""
    with contextlib.suppress(TimeoutError):
        async with awake_timeout(seconds):
            await asyncio.wait([task])
    return task.done()
