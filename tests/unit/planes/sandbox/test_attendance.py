"""The limits of turns and commands do not count the time in which no worker attends to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.freezes import FROZEN_SEC, freeze, notice_soon
from support.moved_clock import MovedClock

from benchflow.planes.sandbox import timeouts
from benchflow.planes.sandbox.timeouts import Attendance, AwakeDeadline, awake_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    clock = MovedClock()
    monkeypatch.setattr(timeouts, "time", clock)
    return clock


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "turn"


def attend(attendance: Attendance, clock: MovedClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        assert not attendance.poll()


def test_time_that_is_attended_is_charged(record: Path, clock: MovedClock) -> None:
    attendance = Attendance(record)
    attend(attendance, clock, 100)
    assert attendance.missed_sec == 0


def test_the_time_for_which_a_worker_is_frozen_is_not_charged(record: Path, clock: MovedClock) -> None:
    attendance = Attendance(record)
    attend(attendance, clock, 5)
    clock.now += 90
    assert attendance.poll()
    attend(attendance, clock, 5)
    assert attendance.missed_sec == 90


def test_the_time_between_two_workers_is_not_charged(record: Path, clock: MovedClock) -> None:
    attend(Attendance(record), clock, 10)
    clock.now += 3600
    next_one = Attendance(record)
    assert next_one.poll()
    attend(next_one, clock, 10)
    # Whatever the first worker did not get to note before it was killed counts as missed.
    assert 3600 <= next_one.missed_sec <= 3600 + timeouts.POLL_INTERVAL_SEC
    third = Attendance(record)
    assert third.missed_sec == next_one.missed_sec


def test_waiting_for_a_person_is_not_charged_however_short_it_is(record: Path, clock: MovedClock) -> None:
    first = Attendance(record)
    attend(first, clock, 5)
    first.suspend()
    clock.now += 3
    second = Attendance(record)
    assert second.poll()
    attend(second, clock, 5)
    assert second.missed_sec == 3


def test_each_turn_has_a_record_of_its_own(record: Path, clock: MovedClock) -> None:
    attend(Attendance(record), clock, 2)
    clock.now += 500
    other = Attendance(record.with_name("other"))
    assert not other.poll()
    assert other.missed_sec == 0


def test_what_began_before_anybody_attended_is_not_charged_for_a_freeze(record: Path, clock: MovedClock) -> None:
    """Such as a command whose host was frozen before its worker could note anything."""
    began = clock.now
    clock.now += 1800
    attendance = Attendance(record, began)
    attendance.poll()
    attend(attendance, clock, 5)
    clock.now += 1800
    next_one = Attendance(record, began)
    next_one.poll()
    assert 5 - timeouts.POLL_INTERVAL_SEC <= next_one.attended_sec <= 5


def test_what_another_worker_attends_to_while_one_is_frozen_is_charged_once(record: Path, clock: MovedClock) -> None:
    began = clock.now
    first = Attendance(record, began)
    attend(first, clock, 4)
    clock.now += 30
    second = Attendance(record, began)
    assert second.poll()
    attend(second, clock, 20)
    assert first.poll()
    assert first.attended_sec == second.attended_sec == 24


def test_a_deadline_does_not_come_in_a_freeze_and_comes_all_the_same(clock: MovedClock) -> None:
    deadline = AwakeDeadline(60)
    clock.now += 9
    assert not deadline.is_over()
    clock.now += 3600
    assert not deadline.is_over()
    # Also for a loop whose every round takes as long as a freeze.
    for _ in range(50):
        clock.now += 11
        over = deadline.is_over()
    assert over


async def test_a_clock_stands_still_while_this_process_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    notice_soon(monkeypatch)
    async with awake_clock() as clock:
        freeze(2 * FROZEN_SEC)
        assert clock() < FROZEN_SEC
        # A long wait is none.
        await asyncio.sleep(2 * FROZEN_SEC)
        assert clock() >= FROZEN_SEC
