"""Work on a sandbox that is cancelled meanwhile: finished, where it cannot be called back, or stopped in its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end. A cancel that comes meanwhile is raised after it, in place of its result.

    Unlike `asyncio.shield` alone, it leaves nothing to do behind, which the end of the event loop would cancel.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # Looked at, or the event loop complains that nobody did.
            task.exception()
        raise


class StoppedError(Exception):
    """Raised by work in a thread that has seen that nobody wants its result any more."""


async def run_stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run blocking work in a thread of its own and return its result. A cancel sets the event, and waits for its end.

    Not in a pool, where work of one rollout that takes long would keep that of all others waiting.
    """
    stop = threading.Event()
    executor = ThreadPoolExecutor(1, thread_name_prefix="stoppable")
    running = asyncio.get_running_loop().run_in_executor(executor, work, stop)
    executor.shutdown(wait=False)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        # Looked at, or the event loop complains that nobody did.
        running.exception()
        raise
