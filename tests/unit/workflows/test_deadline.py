"""What the clock of a deadline counts while the server or all workers are away: the time up to its next timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from benchflow.contracts.fixed_durations import LATE_SEC, SLICE_SEC
from benchflow.workflows import clock as module
from benchflow.workflows.clock import Deadline


class Clock:
    """The time of a workflow, and its timers: each fires when it is due, or as much later as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.late: list[float] = []

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    async def wait(self, tasks: list[asyncio.Task[Any]], *, timeout: float) -> None:
        self.seconds += timeout + (self.late.pop(0) if self.late else 0.0)

    async def wait_condition(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "workflow", clock)
    return clock


async def seconds_until_over(clock: Clock, limit_sec: float) -> float:
    """Return when work without an end has reached its deadline."""
    work = asyncio.ensure_future(asyncio.Event().wait())
    try:
        assert not await Deadline(limit_sec).wait_for(work)
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    return clock.seconds


async def test_work_that_is_not_disturbed_has_its_limit(clock: Clock) -> None:
    assert await seconds_until_over(clock, 24 * 3600.0) == pytest.approx(24 * 3600.0)


@pytest.mark.parametrize("outage_sec", [90.0, 3600.0, timedelta(days=3).total_seconds()])
async def test_an_outage_does_not_count_beyond_the_timer_that_it_holds_up(clock: Clock, outage_sec: float) -> None:
    clock.late = [0.0, outage_sec, 0.0]
    assert await seconds_until_over(clock, 10 * SLICE_SEC) == pytest.approx(10 * SLICE_SEC + outage_sec)


async def test_a_timer_that_is_a_little_late_is_no_outage(clock: Clock) -> None:
    clock.late = [LATE_SEC / 2] * 10
    # The sum of what each is late is counted as work, so the last of them is shorter.
    assert await seconds_until_over(clock, 10 * SLICE_SEC) == pytest.approx(10 * SLICE_SEC, abs=LATE_SEC)
