"""Waiting for a condition: the only way in which tests, and the conformance suite, let time pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def until(condition: Callable[[], T | Awaitable[T]], *, seconds: float = 300.0, every: float = 0.02) -> T:
    """Poll a condition until it is true, and return its value. Synchronous code calls it with `asyncio.run`.

    Args:
        condition: A function, or a coroutine function, without arguments.
        seconds: Timeout. Generous, because a busy machine is no failure: only a test that fails waits so long.
        every: Seconds between polls.

    Raises:
        AssertionError: The condition stayed untrue.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        value = cast(T, await found if inspect.isawaitable(found) else found)
        if value:
            return value
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds:g} s"
        await asyncio.sleep(every)
