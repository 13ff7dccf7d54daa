"""The seconds in which the gateway itself keeps calls waiting are counted once, whatever they wait for."""

from __future__ import annotations

import pytest

from benchflow.gateway import blockage as blockage_module
from benchflow.gateway.blockage import FROZEN_SEC, Blockage, FreezeWatch


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(blockage_module, "time", made)
    return made


def test_seconds_in_which_several_calls_wait_count_once(time: Time) -> None:
    blockage = Blockage()
    assert (blockage.total_sec, blockage.ended_ago_sec) == (0.0, None)
    time.now = 1010
    blockage.add(1000)
    blockage.add(1002)
    time.now = 1011
    blockage.add(1004)
    time.now = 1020
    blockage.add(1019)
    time.now = 1023
    assert (blockage.total_sec, blockage.ended_ago_sec) == (12.0, 3.0)
    blockage.reset()
    assert (blockage.total_sec, blockage.ended_ago_sec) == (0.0, None)


def test_the_time_in_which_the_process_is_frozen_is_a_wait_of_all_calls(time: Time) -> None:
    waiting, other = Blockage(), Blockage()
    watch = FreezeWatch(lambda: [waiting, other])
    time.now += FROZEN_SEC
    watch.look()
    assert (waiting.total_sec, other.total_sec) == (0.0, 0.0)
    began = time.now
    time.now += 600
    # A call that waited for the disk has its turn before the watch.
    waiting.add(began - 0.5)
    watch.look()
    watch.look()
    assert (waiting.total_sec, other.total_sec) == (600.5, 600.0)
    assert (waiting.ended_ago_sec, other.ended_ago_sec) == (0.0, 0.0)
