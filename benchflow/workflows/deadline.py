"""The clock of a rollout's deadline: it counts work, and stands still while the rollout waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any

from temporalio import workflow

SLICE_SEC = 300.0
"""Longest timer of the clock: what an outage of the server or of all workers costs at most, however long it is."""

LATE_SEC = 1.0
"""Delay of a timer from which on it shows an outage."""


class Deadline:
    """Counts the seconds of a rollout's work, up to a limit."""

    def __init__(self, limit_sec: float) -> None:
        self.limit_sec = limit_sec
        self.waited_sec = 0.0
        """Seconds of the past that were waited for a slot, a person, or children."""
        self._worked_sec = 0.0
        self._counted_to: datetime = workflow.now()
        self._timer_due: float | None = None
        self._waits: list[str] = []

    @property
    def waits_for(self) -> str | None:
        """The latest of the things for which the rollout waits now; None while it works."""
        return self._waits[-1] if self._waits else None

    @contextmanager
    def waiting(self, thing: str, on_change: Callable[[], None]) -> Iterator[None]:
        """Have the clock stand still for the block."""
        self.count()
        self._waits.append(thing)
        on_change()
        try:
            yield
        finally:
            self.count()
            self._waits.remove(thing)
            on_change()

    def count(self) -> None:
        """Count the time since it was last counted, as work or as waiting."""
        now = workflow.now()
        passed = (now - self._counted_to).total_seconds()
        self._counted_to = now
        if self._waits:
            self.waited_sec += passed
            return
        late = now.timestamp() - self._timer_due if self._timer_due is not None else 0.0
        # While a timer is late, nobody has worked on this rollout: its server or all workers were away.
        self._worked_sec += passed - min(late, passed) if late > LATE_SEC else passed

    async def wait_for(self, work: asyncio.Task[Any]) -> bool:
        """Wait for the end of `work`. Return False where the rollout has worked for its limit before."""
        while not work.done():
            if self._waits:
                # No timer: a rollout may wait for a person for weeks.
                await workflow.wait_condition(lambda: work.done() or not self._waits)
                continue
            self.count()
            left = self.limit_sec - self._worked_sec
            if left <= 0:
                return False
            seconds = max(0.001, min(left, SLICE_SEC))
            self._timer_due = workflow.now().timestamp() + seconds
            await workflow.wait([work], timeout=seconds)
            self.count()
            self._timer_due = None
        return True


def waiting(thing: str) -> AbstractContextManager[None]:
    """Have the deadline's clock of the running rollout stand still for the block, in which it waits for `thing`."""
    stopped: AbstractContextManager[None] = workflow.instance().waiting(thing)
    return stopped
