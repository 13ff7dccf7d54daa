"""Finish work on a sandbox that cannot be called back, also when it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
