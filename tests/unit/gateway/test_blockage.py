"""The times in which the gateway itself keeps calls waiting are told, whatever they wait for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.moved_clock import MovedClock

from benchflow.gateway import blockage as blockage_module
from benchflow.gateway.blockage import FROZEN_SEC, MAX_INTERVALS, AbsenceWatch, Blockage
from benchflow.testing.waiting import until


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    made = MovedClock()
    monkeypatch.setattr(blockage_module, "time", made)
    return made


def test_waits_at_the_same_time_are_one(time: MovedClock, tmp_path: Path) -> None:
    blockage = Blockage(tmp_path / "blocked")
    time.now = 1010
    blockage.add(1000)
    blockage.add(1002)
    time.now = 1011
    blockage.add(1010.5)
    time.now = 1020
    blockage.add(1019)
    assert blockage.intervals == [(1000, 1011), (1019, 1020)]


def test_of_very_many_waits_the_last_are_one(time: MovedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(blockage_module, "MAX_INTERVALS", 2)
    blockage = Blockage(tmp_path / "blocked")
    for now in (1010, 1020, 1030):
        time.now = now
        blockage.add(now - 1)
    assert blockage.intervals == [(1009, 1010), (1019, 1030)]


def test_the_time_in_which_the_process_is_frozen_is_a_wait_of_all_calls(time: MovedClock, tmp_path: Path) -> None:
    waiting, other = Blockage(tmp_path / "one"), Blockage(tmp_path / "other")
    watch = AbsenceWatch(lambda: [waiting, other], tmp_path / "seen")
    time.now += FROZEN_SEC
    watch.check()
    assert waiting.intervals == other.intervals == []
    began = time.now
    time.now += 600
    # A call that waited for the disk has its turn before the watch.
    waiting.add(began - 0.5)
    watch.check()
    watch.check()
    assert waiting.intervals == [(began - 0.5, began + 600)]
    assert other.intervals == [(began, began + 600)]


async def test_the_time_in_which_no_process_runs_is_counted_by_the_next_one(time: MovedClock, tmp_path: Path) -> None:
    record = tmp_path / "seen"
    running = asyncio.create_task(AbsenceWatch(list, record).run())
    await until(record.exists)
    running.cancel()
    time.now += 600
    blockage = Blockage(tmp_path / "blocked")
    AbsenceWatch(lambda: [blockage], record).resume()
    assert blockage.intervals == [(1000, 1600)]
    # This host was started anew.
    time.now = 5
    AbsenceWatch(lambda: [blockage], record).resume()
    assert blockage.intervals == [(1000, 1600)]


@pytest.mark.parametrize("content", ["", "nothing"])
def test_a_record_that_cannot_be_read_counts_nothing(time: MovedClock, tmp_path: Path, content: str) -> None:
    blockage = Blockage(tmp_path / "blocked")
    (tmp_path / "seen").write_text(content)
    AbsenceWatch(lambda: [blockage], tmp_path / "seen").resume()
    assert blockage.intervals == []


def test_waits_are_known_to_the_next_gateway(time: MovedClock, tmp_path: Path) -> None:
    record = tmp_path / "blocked"
    blockage = Blockage(record)
    for now in range(1010, 1010 + 20 * MAX_INTERVALS, 20):
        time.now = now
        blockage.add(now - 9.8765)
    assert len(blockage.intervals) == MAX_INTERVALS
    assert Blockage(record).intervals == [(round(began, 3), ended) for began, ended in blockage.intervals]
    # This host was started anew: its clock as well.
    time.now = 5
    assert Blockage(record).intervals == []


@pytest.mark.parametrize("content", ["", "nothing", "7", "[[1]]", '{"a": 1}'])
def test_a_damaged_record_of_waits_counts_none(time: MovedClock, tmp_path: Path, content: str) -> None:
    record = tmp_path / "blocked"
    record.write_text(content)
    assert Blockage(record).intervals == []
