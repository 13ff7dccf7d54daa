"""Cancellation of work on a sandbox: deferred until work that can't be revoked is done, or passed on to its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end, even if cancelled meanwhile: then `CancelledError` is raised after it, without its result.

    Unlike `asyncio.shield` alone, this leaves no task behind, which the end of the event loop would cancel.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # Retrieved, or the event loop logs that its exception never was.
            task.exception()
        raise


class StoppedError(Exception):
    """Raised by work in a thread after its caller was cancelled."""


async def run_stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run blocking work in a thread of its own and return its result.

    It runs in no pool, where long work for one rollout would delay that of all others.

    Args:
        work: Receives an event. A cancellation of the coroutine sets the event, and waits for the end of the work.
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
        # Retrieved, or the event loop logs that its exception never was.
        running.exception()
        raise
