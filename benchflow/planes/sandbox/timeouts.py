"""Time limits that count the seconds in which a process attends to what they limit, and no others.

Nobody attends while this process is frozen, perhaps with its whole host, and from a worker's end to the start of the
next one. What outlives a worker has a record of this, which the next worker reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow.errors import StoreError
from benchflow.store import storage_errors

LOOK_EVERY_SEC = 2.0
FROZEN_SEC = 10.0
"""Seconds between two looks that say that nobody attended between them. Fewer may be due to load."""

_SLOW_ROUND_SEC = 1.0


class Attendance:
    """The seconds in which somebody attends, known by looks that are no more than `FROZEN_SEC` apart."""

    def __init__(self, record: Path | None = None, since: float | None = None) -> None:
        """Begin or resume.

        Args:
            record: File in which the next worker finds this. Its directory exists.
            since: When that began which is attended to, as the monotonic clock has it; now if None.
        """
        self._record = record
        now = time.monotonic()
        self._began = now if since is None else since
        noted = self._noted()
        self.missed_sec: float = noted["missed"] if noted else 0.0
        """Seconds so far in which nobody attended."""
        self.missed: list[tuple[float, float]] = _intervals(noted)
        """Begin and end of each time in which nobody attended."""
        self._seen: float = noted["seen"] if noted else self._began
        self._has_left: bool = noted["left"] if noted else False
        self._noted_at = self._seen
        if noted is None and since is None:
            self._note()

    @property
    def attended_sec(self) -> float:
        """Return the seconds since the beginning in which somebody attended, up to the last look."""
        return self._seen - self._began - self.missed_sec

    def look(self) -> bool:
        """Record that a worker attends now. Return True if the time since this one's last look was not attended."""
        now = time.monotonic()
        was_missed = self._has_left or now - self._seen > FROZEN_SEC
        if was_missed and (noted := self._noted()) is not None and noted["seen"] > self._seen:
            # Another worker took over while this one was frozen.
            self.missed_sec, self._seen, self._has_left = noted["missed"], noted["seen"], noted["left"]
            self.missed = _intervals(noted)
        gap = now - self._seen
        if self._has_left or gap > FROZEN_SEC:
            self.missed_sec += gap
            self.missed.append((self._seen, now))
        self._seen, self._has_left = now, False
        if was_missed or now - self._noted_at >= LOOK_EVERY_SEC:
            self._note()
        return was_missed

    def leave(self) -> None:
        """Record that nobody attends until the next look, such as while a person is asked."""
        self.look()
        self._has_left = True
        self._note()

    def _noted(self) -> dict[str, Any] | None:
        if self._record is None:
            return None
        try:
            noted: dict[str, Any] = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            # ValueError: a power cut has left its name and not its content.
            return None
        return noted

    def _note(self) -> None:
        if self._record is not None:
            part = self._record.with_name(f".{self._record.name}.{os.getpid()}")
            with storage_errors(part):
                noted = {"missed": self.missed_sec, "seen": self._seen, "left": self._has_left, "gaps": self.missed}
                part.write_text(json.dumps(noted))
                part.replace(self._record)
        self._noted_at = self._seen


def _intervals(noted: dict[str, Any] | None) -> list[tuple[float, float]]:
    # A record of an older version has none.
    return [(began, ended) for began, ended in noted.get("gaps", ())] if noted else []


class AwakeDeadline:
    """The end of a number of seconds, for a loop that asks after each of its rounds whether they are over."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._seen = time.monotonic()

    def is_over(self) -> bool:
        """Return whether the time since the last call was the last that was left.

        More than `FROZEN_SEC` count as one second: this process was frozen, or is so slow that one more round is due.
        """
        now = time.monotonic()
        gap, self._seen = now - self._seen, now
        self._left -= gap if gap <= FROZEN_SEC else _SLOW_ROUND_SEC
        return self._left <= 0


@asynccontextmanager
async def awake_timeout(seconds: float | None, attendance: Attendance | None = None) -> AsyncIterator[asyncio.Timeout]:
    """Limit a block as `asyncio.timeout` does, by seconds that are attended.

    What ended while the process was frozen has ended in time: there is a moment left in which it is noticed.

    Args:
        seconds: The limit; None for none.
        attendance: Of what began earlier, or is to be waited for by others later. By default it begins now.
    """
    async with asyncio.timeout(None) as limit:
        if seconds is None and attendance is None:
            yield limit
            return
        ticking = asyncio.ensure_future(_expire(limit, seconds, attendance or Attendance()))
        try:
            yield limit
        finally:
            ticking.cancel()


async def awake_sleep(seconds: float | None, attendance: Attendance | None = None) -> None:
    """Return when so many seconds are attended, which is done meanwhile; never if None."""
    attendance = attendance or Attendance()
    while True:
        # A note that cannot be written is written later; what is limited does not depend on the disk.
        with contextlib.suppress(StoreError):
            attendance.look()
        left = math.inf if seconds is None else seconds - attendance.attended_sec
        if left <= 0:
            return
        await asyncio.sleep(min(left, LOOK_EVERY_SEC))


@asynccontextmanager
async def awake_clock() -> AsyncIterator[Callable[[], float]]:
    """Yield a function that returns for how many seconds this process has run since."""
    attendance = Attendance()
    looking = asyncio.ensure_future(awake_sleep(None, attendance))

    def clock() -> float:
        attendance.look()
        return attendance.attended_sec

    try:
        yield clock
    finally:
        looking.cancel()


async def awake_wait(task: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a task for so many seconds in which this process runs. Return whether it is done."""
    with contextlib.suppress(TimeoutError):
        async with awake_timeout(seconds):
            await asyncio.wait([task])
    return task.done()


async def _expire(limit: asyncio.Timeout, seconds: float | None, attendance: Attendance) -> None:
    await awake_sleep(seconds, attendance)
    limit.reschedule(asyncio.get_running_loop().time())
