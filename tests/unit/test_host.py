"""The capacity of a host, counted in slots."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchflow.errors import HostFullError
from benchflow.host import Slots


async def test_slots_are_taken_once_a_sandbox_and_waited_for(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 2, 60)
    assert slots.take("a") and slots.take("b") and slots.take("a")
    assert not slots.take("c")
    assert not Slots(tmp_path / "slots", 2, 60).take("c")
    waiting = asyncio.create_task(slots.wait("c"))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.free("a")
    await asyncio.wait_for(waiting, 60)
    assert slots.taken() == ["b", "c"]
    slots.free("never taken")


async def test_a_slot_that_was_lent_is_taken_again_when_there_is_room(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1, 60)
    assert slots.take("parent")
    slots.lend("parent")
    assert slots.take("child")
    assert not slots.take("parent")
    slots.free("child")
    assert slots.take("parent")
    assert not slots.take("child")


async def test_a_host_that_stays_full_says_so_retryably(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots", 1, 0.05)
    slots.take("a")
    with pytest.raises(HostFullError) as caught:
        await slots.wait("b")
    assert caught.value.retryable
    assert caught.value.key == "BENCHFLOW_HOST_CAPACITY"
