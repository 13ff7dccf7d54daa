"""Loops that run for as long as their process, in rounds that may fail.

If such a loop ended silently, there would be no cleanup, hand-over or restart for the rest of the process's life. So
each round is a task of its own, supervised by `repeat`, which starts the next one after a round has raised, was
cancelled from inside, or hangs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog

from benchflow.errors import BenchFlowError

CANCEL_SEC = 30.0
"""Seconds for which a hanging round may clean up after its cancellation, before it is abandoned."""

log = structlog.get_logger("benchflow.rounds")


class Failures:
    """Log of the failures of a loop's items. Each is logged when it begins or changes, not once per round."""

    def __init__(self, loop: str) -> None:
        """Start the log of a loop."""
        self._loop = loop
        self._before: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def begin_round(self) -> None:
        """Start a round: forget the failures of items that did not fail in the last one."""
        self._before, self._now = self._now, {}

    def report(self, item: str, error: BaseException) -> None:
        """Log the failure of an item, unless the item failed alike in the last round, or earlier in this one."""
        text = f"{type(error).__name__}: {error}"
        # A different time, port or count in the message is not a different failure.
        kind = re.sub(r"\d+", "0", text)
        if kind not in (self._before.get(item), self._now.get(item)):
            shown = None if isinstance(error, BenchFlowError) else error
            log.warning("will be tried again", loop=self._loop, item=item, error=text, exc_info=shown)
        self._now[item] = kind

    @asynccontextmanager
    async def item(self, name: str, limit_sec: float | None = None) -> AsyncIterator[None]:
        """Report the failure of one item, and suppress it, so that the round continues with the other items.

        Args:
            name: The item, as the log names it.
            limit_sec: Timeout of the item in seconds, which counts as a failure; None for no limit.
        """
        try:
            async with asyncio.timeout(limit_sec):
                yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # This task was not cancelled; something that it awaited was.
            self.report(name, error)
        except Exception as error:
            self.report(name, error)


def _never(_error: Exception) -> bool:
    return False


async def repeat(
    name: str,
    work: Callable[[], Awaitable[Any]],
    *,
    every_sec: float,
    limit_sec: float | None = None,
    is_final: Callable[[Exception], bool] = _never,
) -> None:
    """Run one round after another until cancelled. Failures are logged.

    Args:
        name: The loop, as the log names it.
        work: Runs one round. A round that never returns is a loop of its own, which is restarted after a failure.
        every_sec: Seconds between the end of a round and the next.
        limit_sec: Seconds after which a round counts as hanging and is cancelled; None for no limit.
        is_final: Whether an error of a round ends the loop, and is raised.
    """
    failures = Failures(name)
    while True:
        failures.begin_round()
        # A task, so that neither a stray cancellation nor work that ignores its own can end or stop this loop.
        running = asyncio.ensure_future(_run_round(work))
        try:
            await asyncio.wait({running}, timeout=limit_sec)
            if not running.done():
                failures.report("round", TimeoutError(f"a round takes longer than {limit_sec:g} s"))
                running.cancel()
                await asyncio.wait({running}, timeout=CANCEL_SEC)
            elif running.cancelled():
                failures.report("round", asyncio.CancelledError("a round was cancelled from inside"))
            elif (error := running.exception()) is not None:
                # SystemExit and KeyboardInterrupt, which are no `Exception`, are meant for the process.
                if not isinstance(error, Exception) or is_final(error):
                    raise error
                failures.report("round", error)
        except asyncio.CancelledError:
            # The loop is cancelled: let the round clean up.
            running.cancel()
            await asyncio.wait({running})
            raise
        await asyncio.sleep(every_sec)


async def _run_round(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()
