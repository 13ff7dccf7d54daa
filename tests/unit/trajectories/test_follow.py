"""Reading a trajectory while another process writes it, and while it is put aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.errors import ResultFileError
from benchflow.paths import RolloutPaths
from benchflow.results.write import archive_run
from benchflow.testing.waiting import until
from benchflow.trajectories.follow import PIECE, follow
from benchflow.trajectories.journal import append_node


def told(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "agent_message", "text": text} for text in texts]


async def heard(path: Path, over: Callable[[], bool]) -> list[str]:
    """The texts of all events; of one without a text its type."""
    async with asyncio.timeout(60):
        return [event.get("text", event["type"]) async for event in follow(path, over=over, every=0.002)]


@pytest.fixture
def paths(tmp_path: Path) -> RolloutPaths:
    return RolloutPaths(tmp_path / "greet__1")


class Listener:
    """A reader that runs beside the test. texts: what it has heard by now; looks: how often it has come to the end."""

    def __init__(self, path: Path) -> None:
        self.texts: list[str] = []
        self.looks = 0
        self.over = False
        self._task = asyncio.create_task(self._listen(path))

    async def _listen(self, path: Path) -> None:
        async for event in follow(path, over=self._is_over, every=0.002):
            self.texts.append(event.get("text", event["type"]))

    def _is_over(self) -> bool:
        self.looks += 1
        return self.over

    async def looks_again(self) -> None:
        """Until it has read all that is there now."""
        before = self.looks
        await until(lambda: self.looks > before + 1)

    async def hears(self, *texts: str) -> None:
        async with asyncio.timeout(60):
            while self.texts != list(texts):
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.002)

    async def stop(self) -> list[str]:
        self.over = True
        async with asyncio.timeout(60):
            await self._task
        return self.texts


async def test_a_line_is_heard_when_it_is_complete(paths: RolloutPaths) -> None:
    listener = Listener(paths.trajectory)
    await listener.looks_again()
    append_node(paths.trajectory, "n1", "agent", told("one"))
    await listener.hears("one")
    line = json.dumps({"type": "agent_message", "text": "two"}).encode()
    with paths.trajectory.open("ab", buffering=0) as file:
        file.write(line[:20])
        await listener.looks_again()
        assert listener.texts == ["one"]
        file.write(line[20:] + b"\n")
        await listener.hears("one", "two")
    assert await listener.stop() == ["one", "two"]


async def test_a_half_line_that_a_dead_writer_left_is_replaced_by_the_next_ones(paths: RolloutPaths) -> None:
    append_node(paths.trajectory, "n1", "agent", told("one"))
    with paths.trajectory.open("ab") as file:
        file.write(b'{"type": "agent_message", "text": "a half li')
    listener = Listener(paths.trajectory)
    await listener.hears("one")
    await listener.looks_again()
    append_node(paths.trajectory, "n1", "agent", told("one", "two"))
    await listener.hears("one", "two")
    await listener.stop()


async def test_a_run_that_is_put_aside_is_read_to_its_end_and_the_next_from_its_beginning(paths: RolloutPaths) -> None:
    append_node(paths.trajectory, "n1", "agent", told("old"))
    paths.config.write_text("{}")
    listener = Listener(paths.trajectory)
    await listener.hears("old")
    with paths.trajectory.open("ab") as earlier:
        archive_run(paths)
        # Nothing was missed of what an attempt wrote while it was being moved.
        earlier.write(json.dumps(told("last words")[0]).encode() + b"\n")
    await listener.hears("old", "last words", "put_aside")
    append_node(paths.trajectory, "n1", "agent", told("new"))
    await listener.hears("old", "last words", "put_aside", "new")
    await listener.stop()


async def test_what_is_there_is_read_when_it_is_over_already(paths: RolloutPaths) -> None:
    append_node(paths.trajectory, "n1", "agent", told("one", "two"))
    assert await heard(paths.trajectory, lambda: True) == ["one", "two"]


async def test_without_a_file_there_is_nothing_to_hear(paths: RolloutPaths) -> None:
    assert await heard(paths.trajectory, lambda: True) == []


async def test_a_line_may_be_longer_than_what_is_read_at_once(paths: RolloutPaths) -> None:
    long = "x" * (2 * PIECE)
    append_node(paths.trajectory, "n1", "agent", told("one", long, "two"))
    assert await heard(paths.trajectory, lambda: True) == ["one", long, "two"]


@pytest.mark.parametrize("line", [b"no json", b"[1]", b"\xff\xfe"])
async def test_a_line_that_is_no_event_is_an_error_that_names_the_file(paths: RolloutPaths, line: bytes) -> None:
    paths.trajectory.parent.mkdir(parents=True)
    paths.trajectory.write_bytes(line + b"\n")
    with pytest.raises(ResultFileError) as caught:
        await heard(paths.trajectory, lambda: True)
    assert caught.value.file == str(paths.trajectory)
