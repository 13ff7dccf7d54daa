"""Work that a process repeats for as long as it lives, in rounds that may fail.

A loop that ends silently takes cleanup, hand-over or restarts with it for the rest of the process's life. So what must
go on for ever is a round here: it is a task of its own, watched by `repeat`, which starts it again after it has raised,
was cancelled from inside, or hangs.
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
"""Seconds that a round which took too long has to end after it was cancelled, before it is left alone."""

log = structlog.get_logger("benchflow.rounds")


class Failures:
    """Log the failures of a loop's items, each when it begins or changes and not in every round in which it lasts."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._before: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def begin_round(self) -> None:
        """Forget the failures of items that did not fail in the last round."""
        self._before, self._now = self._now, {}

    def report(self, item: str, error: BaseException) -> None:
        """Log why an item failed, unless it failed in the same way in the last round or before in this one."""
        text = f"{type(error).__name__}: {error}"
        # Times, ports and counts in a message make no other failure.
        kind = re.sub(r"\d+", "0", text)
        if kind not in (self._before.get(item), self._now.get(item)):
            shown = None if isinstance(error, BenchFlowError) else error
            log.warning("will be tried again", loop=self._loop, item=item, error=text, exc_info=shown)
        self._now[item] = kind

    @asynccontextmanager
    async def item(self, name: str, limit_sec: float | None = None) -> AsyncIterator[None]:
        """Keep the failure of one item from the others of its round.

        Args:
            name: The item, as the log names it.
            limit_sec: Seconds after which the item is given up, as a failure; None: as long as it takes.
        """
        try:
            async with asyncio.timeout(limit_sec):
                yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled this task: something that it waited for was.
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
    """Do one round after another until cancelled.

    Args:
        name: The loop, as the log names it.
        work: One round. One that never returns is a loop of its own, which is started again when it has failed.
        every_sec: Seconds between the end of a round and the next.
        limit_sec: Seconds after which a round is cancelled, because it hangs; None: a round may take for ever.
        is_final: Whether an error of a round ends the loop, and is raised here.
    """
    failures = Failures(name)
    while True:
        failures.begin_round()
        # A task, so that neither a stray cancellation nor work that ignores its own can end or stop this loop.
        running = asyncio.ensure_future(_as_coroutine(work))
        try:
            await asyncio.wait({running}, timeout=limit_sec)
            if not running.done():
                failures.report("round", TimeoutError(f"a round takes longer than {limit_sec:g} s"))
                running.cancel()
                await asyncio.wait({running}, timeout=CANCEL_SEC)
            elif running.cancelled():
                failures.report("round", asyncio.CancelledError("a round was cancelled from inside"))
            elif (error := running.exception()) is not None:
                # What is no `Exception` (SystemExit, KeyboardInterrupt) is meant for the process.
                if not isinstance(error, Exception) or is_final(error):
                    raise error
                failures.report("round", error)
        except asyncio.CancelledError:
            # The loop is over, and its work cleans up.
            running.cancel()
            await asyncio.wait({running})
            raise
        await asyncio.sleep(every_sec)


async def _as_coroutine(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()
