"""Time limits that do not count the time for which this process was frozen, perhaps with its whole host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SLICE_SEC = 5.0
FROZEN_SEC = 10.0
"""Seconds beyond what a wait should take that say that this process was frozen. Fewer may be due to load."""


@asynccontextmanager
async def awake_timeout(seconds: float | None) -> AsyncIterator[None]:
    """Limit a block as `asyncio.timeout` does, by seconds in which this process ran.

    What ended while the process was frozen has ended in time: it is given a slice to be noticed.
    """
    if seconds is None:
        yield
        return
    async with asyncio.timeout(None) as limit:
        ticking = asyncio.ensure_future(_expire(limit, seconds))
        try:
            yield
        finally:
            ticking.cancel()


async def _expire(limit: asyncio.Timeout, seconds: float) -> None:
    """Let a timeout expire after so many seconds."""
    while seconds > 0:
        pause, began = min(seconds, _SLICE_SEC), time.monotonic()
        await asyncio.sleep(pause)
        if time.monotonic() - began < pause + FROZEN_SEC:
            seconds -= pause
    limit.reschedule(asyncio.get_running_loop().time())
