"""Wait for conditions by polling, in place of fixed sleeps, in tests and the conformance suites."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

TIMEOUT_SEC = float(os.environ.get("BENCHFLOW_TEST_TIMEOUT_SEC") or 300)
"""Timeout of a wait, in seconds. Generous, because a busy machine is no failure: only a test that fails waits so long.
"""


@overload
async def until(condition: Callable[[], Awaitable[T]], *, seconds: float = TIMEOUT_SEC, every: float = 0.02) -> T: ...


@overload
async def until(condition: Callable[[], T], *, seconds: float = TIMEOUT_SEC, every: float = 0.02) -> T: ...


async def until(condition: Callable[[], Any], *, seconds: float = TIMEOUT_SEC, every: float = 0.02) -> Any:
    """Poll a condition until it is true, and return its value. Synchronous code calls it with `asyncio.run`.

    Args:
        condition: A function, or a coroutine function, without arguments.
        seconds: Timeout.
        every: Minimum poll interval in seconds. It grows to a tenth of the time waited so far, at most 1 s, because
            polls slow down the work that is waited for.

    Raises:
        AssertionError: The timeout has passed.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(max(every, min((time.monotonic() - began) / 10, 1.0)))
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"the condition did not come true within {seconds:g} s") from None
