"""State under fire: helpers and callers that are killed at any moment, and a thousand turns of a world that goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Literal

import pytest
from support.state_room import Ledger, Room, by_the_images, locally, untorn

from benchflow.contracts.environment import StateSnapshot
from benchflow.errors import BenchFlowError
from benchflow.planes.environment.world_state import SNAPSHOTS

PATHS = ["/data/a.db", "/data/b.db"]
_FILL = """
    PRAGMA journal_mode=WAL; CREATE TABLE t (n INTEGER PRIMARY KEY, v);
    INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
    SELECT i, randomblob(200000) FROM n;
"""
_SPOIL = "DELETE FROM t WHERE n > 3; CREATE TABLE IF NOT EXISTS later (x);"
_EACH = """
import sqlite3, sys
for path in sys.argv[2:]:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(sys.argv[1])
    facts = "SELECT count(*), sum(length(v)), (SELECT count(*) FROM sqlite_master) FROM t"
    print(*database.execute(facts).fetchone(), *database.execute("PRAGMA integrity_check").fetchone())
    database.close()
"""
# Waits for a sign of how far the helper is, and says so as soon as it is there; kills the helper if it is told to.
_WATCH = """
import os, signal, sys, time
sign, over, *kill = sys.argv[1:]
print("watching", flush=True)
while not os.path.lexists(sign):
    if os.path.lexists(over):
        sys.exit()
    time.sleep(0.0002)
for pid in filter(str.isdigit, os.listdir("/proc") if kill else ()):
    try:
        with open("/proc/" + pid + "/cmdline") as file:
            words = file.read()
        if "benchflow" "_fence" in words:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        continue
print("there", flush=True)
"""
OVER = "/tmp/over"

Work = Callable[[], Coroutine[Any, Any, StateSnapshot | None]]
SIGNS = {
    "snapshot": (
        *("{snapshots}/.lock", "{snapshots}/.{name}.part", "{snapshots}/.{name}.part/files/data/a.db"),
        *("{snapshots}/.{name}.part/files/data/b.db", "{snapshots}/.{name}.part/snapshot.json"),
    ),
    "restore": ("/data/.a.db.benchflow", "/data/.b.db.benchflow"),
    "live restore": ("/data/a.db-wal", "/data/b.db-wal"),
}
"""Files that are there while the helper is at something, by what it does."""


class Ending:
    """Ends a helper, or its caller, in the middle of what it does. other: the room as somebody else reaches it."""

    def __init__(self, other: Room, who: Literal["helper", "caller"]) -> None:
        self._other = other
        self._who = who

    async def end(self, sign: str, work: Work) -> StateSnapshot | BenchFlowError | None:
        """Return what work came to that was ended when there was a sign, or when it was over."""
        watching = self._other.sandbox.exec_stream(
            ["python3", "-I", "-S", "-c", _WATCH, sign, OVER, *(["kill"] if self._who == "helper" else [])], cwd="/"
        )
        said = await anext(watching)
        assert said.data == b"watching\n", said
        task = asyncio.create_task(work())
        seen = asyncio.create_task(self._seen(watching))
        if self._who == "caller":
            await asyncio.wait([task, seen], return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await self._other.sh(': >"$1"', OVER)
        await seen
        await self._other.sh('rm "$1"', OVER)
        if isinstance(result, asyncio.CancelledError):
            return BenchFlowError("its caller went away")
        assert result is None or isinstance(result, StateSnapshot | BenchFlowError), result
        return result

    async def _seen(self, watching: AsyncIterator[Any]) -> None:
        async for _ in watching:
            pass


async def filled(room: Room) -> None:
    await room.sh("mkdir -p /data")
    await room.python(_EACH, _FILL, *PATHS)


async def spoiled(room: Room) -> None:
    await room.python(_EACH, _SPOIL, *PATHS)


async def restored(room: Room) -> None:
    assert (await room.python(_EACH, "", *PATHS)).splitlines() == [f"40 {40 * 200000} 1 ok"] * 2
    assert await room.names("/data") == {"a.db", "b.db"}


async def go_through(room: Room, ending: Ending, signs: dict[str, Sequence[str]]) -> None:
    """End a snapshot and both kinds of restore at each sign, and have the next one complete it."""
    await filled(room)
    store, number = room.store(), 0
    taken = await store.snapshot("whole", PATHS)
    for sign in signs["snapshot"]:
        ended: StateSnapshot | BenchFlowError | None = taken
        # It may be over before its end comes: as often as it takes to show something.
        while not isinstance(ended, BenchFlowError):
            number += 1
            name = f"s{number}"
            at = sign.format(snapshots=SNAPSHOTS, name=name)
            await room.sh(f"rm -f {SNAPSHOTS}/.lock")
            ended = await ending.end(at, lambda name=name: store.snapshot(name, PATHS))
            taken = await store.snapshot(name, PATHS)
            assert isinstance(ended, BenchFlowError) or ended == taken
            assert await room.names(SNAPSHOTS) == {".lock", "whole", *(f"s{n + 1}" for n in range(number))}
    for what, live in (("restore", False), ("live restore", True)):
        for sign in signs[what]:
            ended = None
            while ended is None:
                await spoiled(room)
                ended = await ending.end(sign, lambda live=live: store.restore(taken, live=live))
                await store.restore(taken, live=live)
                await restored(room)


FEW = {what: signs[-1:] for what, signs in SIGNS.items()}


@by_the_images
async def test_a_killed_helper_is_made_good_by_the_next(room: Room, other: Room) -> None:
    await go_through(room, Ending(other, "helper"), FEW)


@by_the_images
async def test_a_caller_that_goes_away_leaves_nothing_that_the_next_would_trip_over(room: Room, other: Room) -> None:
    await go_through(room, Ending(other, "caller"), FEW)


@pytest.mark.long
@by_the_images
@pytest.mark.parametrize("who", ["helper", "caller"])
async def test_who_works_on_state_may_end_at_any_moment(
    room: Room, other: Room, who: Literal["helper", "caller"]
) -> None:
    await go_through(room, Ending(other, who), SIGNS)


# --- a world that goes on --------------------------------------------------------------------------------


class Life:
    """Writes, snapshots, restores and resets in random order, and what must be there after each."""

    def __init__(self, room: Room, seed: int) -> None:
        self._generator = random.Random(seed)
        self._ledger = Ledger(room)
        self._store = room.store()
        self._notes: dict[str, dict[int, str]] = {name: {} for name in "abc"}
        self._kept: dict[str, tuple[StateSnapshot, dict[str, dict[int, str]]]] = {}

    async def run(self, steps: int) -> None:
        await self._ledger.start()
        await self.snapshot("baseline")
        kinds = ("write", "snapshot", "restore", "restore live", "reset")
        chosen = [*kinds, *self._generator.choices(kinds, weights=[8, 3, 2, 2, 1], k=steps - len(kinds))]
        self._generator.shuffle(chosen)
        for number, step in enumerate(chosen):
            if step == "write":
                await self.write(number)
            elif step == "snapshot":
                await self.snapshot(f"s{number % 20}-{number}")
            else:
                name = "baseline" if step == "reset" else self._generator.choice(list(self._kept))
                await self.restore(name, live=step == "restore live")
                await self.check(step)
        await self.check("end")
        await self._ledger.stop()

    async def write(self, number: int) -> None:
        script = ""
        name = self._generator.choice("abc")
        rows = self._notes[name]
        for _ in range(self._generator.randrange(1, 6)):
            id = self._generator.randrange(20)
            if id in rows and self._generator.random() < 0.4:
                script += f"DELETE FROM notes WHERE id = {id};"
                del rows[id]
            else:
                rows[id] = f"{number} " + "x" * self._generator.choice([0, 10, 5000])
                script += f"INSERT OR REPLACE INTO notes VALUES ({id}, '{rows[id]}');"
        await self._ledger.tell("run", name=name, script=f"BEGIN; {script} COMMIT;")

    async def snapshot(self, name: str) -> None:
        taken = await self._store.snapshot(name, self._ledger.paths)
        self._kept[name] = taken, {each: dict(rows) for each, rows in self._notes.items()}

    async def restore(self, name: str, *, live: bool) -> None:
        taken, notes = self._kept[name]
        self._notes = {each: dict(rows) for each, rows in notes.items()}
        if live:
            await self._ledger.tell("pause")
            await self._store.restore(taken, live=True)
            torn = (await self._ledger.read())[1]
            assert untorn(torn), torn
            await self._ledger.tell("resume")
        else:
            await self._ledger.stop()
            await self._store.restore(taken, live=False)
            await self._ledger.start()

    async def check(self, step: str) -> None:
        """The process that has the files open sees what must be there."""
        notes, _ = await self._ledger.read()
        assert notes == self._notes, step
        await self._ledger.tell("pause")
        ticks = (await self._ledger.read())[1]
        assert untorn(ticks), (step, ticks)
        await self._ledger.tell("resume")


@by_the_images
async def test_a_world_is_where_it_must_be_after_any_sequence(room: Room) -> None:
    await Life(room, 6).run(12)


@pytest.mark.long
@by_the_images
async def test_a_world_is_where_it_must_be_after_eighty_steps(room: Room) -> None:
    await Life(room, 7).run(80)


@pytest.mark.soak
@locally
async def test_a_world_is_where_it_must_be_after_a_thousand_steps(room: Room) -> None:
    await Life(room, 8).run(1000)
