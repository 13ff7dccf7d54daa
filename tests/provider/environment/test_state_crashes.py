"""State under fire: helpers and callers that are killed at any moment, and a thousand turns of a world that goes on."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.state_room import Ledger, Room, by_python_locally, everywhere, untorn

from benchflow.contracts.environment import StateSnapshot
from benchflow.errors import BenchFlowError
from benchflow.planes.environment.state import SNAPSHOTS

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
_KILL = """
sleep "$1"
for p in /proc/[0-9]*; do
  if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q 'benchflow[_]fence'; then kill -9 ${p#/proc/} && echo killed; fi
done
true
"""


async def kill_helper(room: Room, after: float) -> int:
    """Kill the helper in the sandbox in the middle of what it does; how many there were."""
    return (await room.sh(_KILL, str(after))).count("killed")


async def filled(room: Room) -> None:
    await room.sh("mkdir -p /data")
    await room.python(_EACH, _FILL, *PATHS)


async def spoiled(room: Room) -> None:
    await room.python(_EACH, _SPOIL, *PATHS)


async def restored(room: Room) -> None:
    assert (await room.python(_EACH, "", *PATHS)).splitlines() == [f"40 {40 * 200000} 1 ok"] * 2
    assert await room.names("/data") == {"a.db", "b.db"}


@everywhere
async def test_a_killed_helper_is_made_good_by_the_next(room: Room, other: Room) -> None:
    await filled(room)
    generator, store, kills = random.Random(6), room.store(), 0
    for turn in range(12):
        # As often as it takes to show something.
        if turn >= 4 and kills:
            break
        calls = await asyncio.gather(
            store.snapshot(f"s{turn}", PATHS), kill_helper(other, generator.uniform(0, 0.4)), return_exceptions=True
        )
        assert isinstance(calls[1], int), calls[1]
        kills += calls[1]
        taken = await store.snapshot(f"s{turn}", PATHS)
        assert calls[0] == taken or isinstance(calls[0], BenchFlowError), calls[0]
        assert await room.names(SNAPSHOTS) == {".lock", *(f"s{n}" for n in range(turn + 1))}
        live = turn % 2 == 1
        await spoiled(room)
        calls = await asyncio.gather(
            store.restore(taken, live=live), kill_helper(other, generator.uniform(0, 0.4)), return_exceptions=True
        )
        assert isinstance(calls[1], int), calls[1]
        kills += calls[1]
        assert calls[0] is None or isinstance(calls[0], BenchFlowError), calls[0]
        await store.restore(taken, live=live)
        await restored(room)
    assert kills, "nothing was killed: the test has shown nothing"


@everywhere
async def test_a_caller_that_goes_away_leaves_nothing_that_the_next_would_trip_over(room: Room) -> None:
    await filled(room)
    generator, store = random.Random(6), room.store()
    cut = 0
    for turn in range(12):
        # As often as it takes to show something.
        if turn >= 3 and cut:
            break
        taken: StateSnapshot | None = None
        for live in (None, False, True):
            if live is not None:
                await spoiled(room)
            try:
                async with asyncio.timeout(generator.uniform(0.02, 0.4)):
                    if live is None:
                        await store.snapshot(f"s{turn}", PATHS)
                    elif taken:
                        await store.restore(taken, live=live)
            except TimeoutError:
                cut += 1
            if live is None:
                taken = await store.snapshot(f"s{turn}", PATHS)
            elif taken:
                await store.restore(taken, live=live)
                await restored(room)
    assert cut, "nobody went away: the test has shown nothing"


# --- a world that goes on --------------------------------------------------------------------------------


class Life:
    """Writes, snapshots, restores and resets in random order, and what must be there after each."""

    def __init__(self, room: Room, seed: int) -> None:
        self._generator = random.Random(seed)
        self._ledger = Ledger(room)
        self._store = room.store(patience=20.0)
        self._notes: dict[str, dict[int, str]] = {name: {} for name in "abc"}
        self._kept: dict[str, tuple[StateSnapshot, dict[str, dict[int, str]]]] = {}
        self.done = dict.fromkeys(("write", "snapshot", "restore", "restore live", "reset"), 0)

    async def run(self, steps: int) -> None:
        await self._ledger.start()
        await self.snapshot("baseline")
        for number in range(steps):
            (step,) = self._generator.choices(list(self.done), weights=[8, 3, 2, 2, 1])
            self.done[step] += 1
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


@everywhere
async def test_a_world_is_where_it_must_be_after_any_sequence(room: Room) -> None:
    life = Life(room, 6)
    await life.run(40)
    assert all(life.done.values()), life.done


@pytest.mark.soak
@by_python_locally
async def test_a_world_is_where_it_must_be_after_two_hundred_steps(room: Room) -> None:
    await Life(room, 7).run(200)


@pytest.mark.soak
@everywhere
async def test_a_world_is_where_it_must_be_after_a_thousand_steps(room: Room) -> None:
    await Life(room, 8).run(1000)
