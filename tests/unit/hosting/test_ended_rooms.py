"""Clean rooms that are removed while their rollout goes on: what waits for a removal needs nothing of the room."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from benchflow.hosting import clean_room


async def test_a_room_whose_removal_is_under_way_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = clean_room.room_notes(tmp_path / "evidence")
    place.mkdir(parents=True)
    (place / "sandbox").write_text("bf-room-1")
    begun = asyncio.Event()

    async def remove() -> None:
        await begun.wait()
        shutil.rmtree(place)

    removal = asyncio.create_task(remove())
    monkeypatch.setitem(clean_room._REMOVALS, "bf-room-1", removal)
    ending = asyncio.create_task(clean_room.remove_rooms("noop", tmp_path))
    asyncio.get_running_loop().call_soon(begun.set)
    await ending
    assert removal.done() and not place.exists()
