"""A turn's limits do not count the time in which no worker attends to the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.planes.agent.acp import attendance as module
from benchflow.planes.agent.acp.attendance import Attendance
from benchflow.planes.agent.acp.notes import Notes


class Clock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


def attend(attendance: Attendance, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        assert not attendance.look()


def test_time_that_is_attended_is_charged(notes: Notes, clock: Clock) -> None:
    attendance = Attendance(notes, "turn")
    attend(attendance, clock, 100)
    assert attendance.missed_sec == 0


def test_the_time_for_which_a_worker_is_frozen_is_not_charged(notes: Notes, clock: Clock) -> None:
    attendance = Attendance(notes, "turn")
    attend(attendance, clock, 5)
    clock.now += 90
    assert attendance.look()
    attend(attendance, clock, 5)
    assert attendance.missed_sec == 90


def test_the_time_between_two_workers_is_not_charged(notes: Notes, clock: Clock) -> None:
    attend(Attendance(notes, "turn"), clock, 10)
    clock.now += 3600
    next_one = Attendance(notes, "turn")
    assert next_one.look()
    attend(next_one, clock, 10)
    # Whatever the first worker did not get to note before it was killed counts as missed.
    assert 3600 <= next_one.missed_sec <= 3600 + module.NOTE_EVERY_SEC
    third = Attendance(notes, "turn")
    assert third.missed_sec == next_one.missed_sec


def test_waiting_for_a_person_is_not_charged_however_short_it_is(notes: Notes, clock: Clock) -> None:
    first = Attendance(notes, "turn")
    attend(first, clock, 5)
    first.leave()
    clock.now += 3
    second = Attendance(notes, "turn")
    assert second.look()
    attend(second, clock, 5)
    assert second.missed_sec == 3


def test_each_turn_has_a_record_of_its_own(notes: Notes, clock: Clock) -> None:
    attend(Attendance(notes, "one"), clock, 2)
    clock.now += 500
    other = Attendance(notes, "two")
    assert not other.look()
    assert other.missed_sec == 0
