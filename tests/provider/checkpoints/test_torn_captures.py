"""Checkpoints of real worlds: layers of one moment, or none; copies that are proved before they are used."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.captured import checkpoint_of
from support.small_worlds import DATABASE, MakeWorld, OnDocker, OnLocal, Worlds, ask, notes

from benchflow.checkpoints import capture, prove
from benchflow.checkpoints.checkpoint_capture import FENCE
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.environment import StateTable
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import CheckpointError
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.testing.sandbox_conformance.sandbox_fixtures import leave, nap
from benchflow.testing.waiting import until

STATE = StateTable(paths=(DATABASE,))
Take = Callable[..., Awaitable[Checkpoint]]

# Commits again and again, as fast as it can. The argument: a file that is there as soon as it has.
RESTLESS = """import sqlite3, sys, time
db = sqlite3.connect("/data/notes.db", timeout=600)
while True:
    with db:
        db.execute("INSERT INTO notes (text) VALUES ('restless')")
    open(sys.argv[1], "w").close()
    time.sleep(0.001)
"""


# Asks for no lock, and writes what is there already, so that the database stays whole.
BLIND = """import sys, time
file = open(sys.argv[2], "r+b", buffering=0)
while True:
    file.seek(0)
    head = file.read(100)
    file.seek(0)
    file.write(head)
    open(sys.argv[1], "w").close()
    time.sleep(0.0002)
"""

# Writes a line into one file and then into the other.
DILIGENT = """import sys, time
number = 0
while True:
    number += 1
    for name in ("/tmp/first", "/tmp/second"):
        with open(name, "a") as file:
            file.write(f"{number:08}\\n")
        time.sleep(0.0002)
    open(sys.argv[1], "w").close()
"""


class Checkpoints(Worlds):
    @pytest_asyncio.fixture
    async def world_here(self, place: Sandbox, world: MakeWorld) -> ManifestEnvironment:
        """A world with a service that has one note."""
        made = world(notes(), state=STATE)
        await made.start()
        await made.readiness()
        await ask(place, note="before")
        return made

    @pytest_asyncio.fixture
    async def take(
        self, place: Sandbox, provider: SandboxProvider, world_here: ManifestEnvironment, discard: list[ImageRef]
    ) -> AsyncIterator[Take]:
        async def one(**options: Any) -> Checkpoint:
            name = f"benchflow-test-{uuid.uuid4().hex[:12]}"
            captured = await capture(name, place, provider, world_here, paths=STATE.paths, **options)
            discard.append(captured.files.image)
            return checkpoint_of(captured, place)

        yield one

    async def test_a_copy_has_the_state_of_the_moment_and_neither_sees_the_other_nor_an_agent_the_fence(
        self, place: Sandbox, start: Any, world: MakeWorld, take: Take
    ) -> None:
        await place.write_file("/root/file", "before")
        checkpoint = await take()
        assert (await place.exec(["cat", FENCE], user="nobody")).return_code != 0
        assert (await place.exec(["cat", FENCE])).stdout == checkpoint.fence
        await ask(place, note="after")
        await place.write_file("/root/file", "after")
        copies = [await start(image=checkpoint.files.image) for _ in range(2)]
        for number, copy in enumerate(copies):
            there = world(notes(), sandbox=copy, state=STATE)
            await prove(checkpoint, copy, there)
            assert await ask(copy) == ["before"]
            assert await copy.read_bytes("/root/file") == b"before"
            await ask(copy, note=f"copy {number}")
        assert [await ask(copy) for copy in copies] == [["before", "copy 0"], ["before", "copy 1"]]
        assert await ask(place) == ["before", "after"]

    async def test_what_moves_while_it_is_taken_is_seen_and_it_is_taken_again(
        self, place: Sandbox, start: Any, world: MakeWorld, take: Take
    ) -> None:
        looks = 0

        async def counters() -> dict[str, int | str]:
            # A note arrives between the first capture's state and the end of its files.
            nonlocal looks
            looks += 1
            if looks == 2:
                await ask(place, note="late")
            return {"calls": looks if looks <= 2 else 2}

        checkpoint = await take(counters=counters)
        assert checkpoint.attempts == 2
        copy = await start(image=checkpoint.files.image)
        await prove(checkpoint, copy, world(notes(), sandbox=copy, state=STATE))
        assert await ask(copy) == ["before", "late"]

    async def test_a_world_that_never_stands_still_is_refused_and_nothing_of_it_is_kept(
        self, place: Sandbox, provider: SandboxProvider, take: Take
    ) -> None:
        restless = await self.begin(place, RESTLESS)
        with pytest.raises(CheckpointError, match="did not stand still in 2 attempts"):
            await take(attempts=2)
        assert (await place.exec(["ls", "/var/lib/benchflow/snapshots"])).stdout.split() == []
        await place.kill_once(restless)
        assert (await take()).fence

    @pytest.mark.long
    async def test_a_writer_that_asks_for_no_lock_is_seen(self, place: Sandbox, take: Take) -> None:
        blind = await self.begin(place, BLIND, DATABASE)
        with pytest.raises(CheckpointError, match=DATABASE):
            await take(attempts=2)
        assert (await place.exec(["ls", "/var/lib/benchflow/snapshots"])).stdout.split() == []
        await place.kill_once(blind)
        assert (await take()).fence

    async def test_a_writer_that_is_not_frozen_with_the_sandbox_is_seen(
        self, place: Sandbox, take: Take, tmp_path: Path
    ) -> None:
        path = f"/proc/{await pid_on_this_host(place)}/root{DATABASE}"
        begun = tmp_path / "begun"
        outside = await asyncio.create_subprocess_exec(sys.executable, "-c", BLIND, str(begun), path)

        async def has_begun() -> bool:
            return begun.exists()

        try:
            await until(has_begun)
            with pytest.raises(CheckpointError, match=DATABASE):
                await take(attempts=2)
            assert outside.returncode is None
        finally:
            outside.kill()
            await outside.wait()
        assert (await take()).fence

    async def test_files_that_an_agent_goes_on_to_write_are_those_of_one_moment(
        self, place: Sandbox, start: Any, world: MakeWorld, take: Take
    ) -> None:
        diligent = await self.begin(place, DILIGENT, user="nobody")
        before = len(await lines(place, "/tmp/second"))
        checkpoint = await take()
        assert checkpoint.attempts == 1
        copy = await start(image=checkpoint.files.image)
        await prove(checkpoint, copy, world(notes(), sandbox=copy, state=STATE))
        first, second = [await lines(copy, name) for name in ("/tmp/first", "/tmp/second")]
        assert first == [f"{number:08}" for number in range(1, len(first) + 1)]
        assert second == first[: len(second)] and len(first) - len(second) in (0, 1)
        assert before <= len(second)

        async def has_gone_on() -> bool:
            return len(await lines(place, "/tmp/second")) > len(second)

        await until(has_gone_on)
        await place.kill_once(diligent)

    @pytest.mark.long
    async def test_an_agent_that_goes_on_outside_is_seen(self, take: Take) -> None:
        said = iter(range(100))

        async def counters() -> dict[str, int | str]:
            return {"out": next(said)}

        with pytest.raises(CheckpointError, match="out"):
            await take(counters=counters, attempts=2)

    async def test_a_copy_that_is_not_of_the_moment_is_never_used(
        self, place: Sandbox, start: Any, world: MakeWorld, take: Take
    ) -> None:
        checkpoint = await take()
        other = await take()
        copy = await start(image=checkpoint.files.image)
        with pytest.raises(CheckpointError, match="another fence"):
            await prove(other, copy, None)
        assert checkpoint.state is not None
        file = f"{checkpoint.state.snapshot.directory}/files{DATABASE}"
        await copy.control('printf x >>"$1"', file)
        with pytest.raises(CheckpointError, match="not that of the checkpoint"):
            await prove(checkpoint, copy, world(notes(), sandbox=copy, state=STATE))

    async def test_a_capture_that_is_cut_short_leaves_nothing(self, place: Sandbox, take: Take) -> None:
        async def counters() -> dict[str, int | str]:
            if (await place.exec(["test", "-e", "/var/lib/benchflow/snapshots"])).return_code == 0:
                taking.cancel()
                await asyncio.Event().wait()
            return {}

        taking = asyncio.ensure_future(take(counters=counters))
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert (await place.exec(["ls", "/var/lib/benchflow/snapshots"])).stdout.split() == []

    async def begin(self, place: Sandbox, program: str, *arguments: str, user: str | None = None) -> str:
        """Have a program do its work beside the test; the key to kill it by."""
        key = f"restless-{uuid.uuid4().hex[:6]}"
        begun = f"/tmp/{key}"
        script = f"python3 -I -S -c {shlex.join([program, begun, *arguments])} >/dev/null 2>&1 & echo begun"
        await place.exec_once(key, ["sh", "-c", script], user=user)

        async def has_begun() -> bool:
            return (await place.exec(["test", "-e", begun])).return_code == 0

        await until(has_begun)
        return key


async def lines(sandbox: Sandbox, path: str) -> list[str]:
    return (await sandbox.read_bytes(path)).decode().splitlines()


async def pid_on_this_host(sandbox: Sandbox) -> int:
    """Of a process in the sandbox, by the length of its sleep, which no other process has."""
    length = nap()
    await leave(sandbox, length)
    mark = f"sleep\0{length}\0".encode()
    (found,) = [it for it in Path("/proc").glob("[0-9]*/cmdline") if read_if_there(it) == mark]
    return int(found.parent.name)


def read_if_there(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.mark.local
class TestOnLocal(OnLocal, Checkpoints):
    pass


@pytest.mark.docker
@pytest.mark.long
class TestOnDocker(OnDocker, Checkpoints):
    pass
