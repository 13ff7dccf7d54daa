"""Whoever works on a world may be killed at any moment; whoever comes next finishes what was asked for."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.small_worlds import DATABASE, MakeWorld, OnDocker, OnLocal, Worlds, ask, notes, running
from support.world_callers import call

from benchflow.contracts.environment import StateTable
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.environment.incarnation import WORLD
from benchflow.testing.waiting import until

STATE = StateTable(paths=(DATABASE, "/data/more.db"))


async def only_once(sandbox: Sandbox) -> None:
    """Each service runs, and is served by one process."""
    assert await running(sandbox, "/usr/local/bin/notes --db /data/notes.db") == 1
    assert await running(sandbox, "/usr/local/bin/notes --db /data/more.db") == 1
    assert await running(sandbox, "benchflow-world") >= 1


class CrashesAtTheStart(Worlds):
    moments = 4

    async def test_starting_a_world_may_be_interrupted_at_any_moment(self, place: Sandbox, world: MakeWorld) -> None:
        mine = world(notes(), notes("more", 9102))
        caller = call(self.provider_path, place.ref, mine.manifest, "provision")
        await caller.begun()
        began = time.monotonic()
        await caller.answer()
        whole = time.monotonic() - began
        for step in range(self.moments):
            # Each incarnation is given the time to say that it began.
            await mine.readiness()
            await mine.teardown()
            caller = call(self.provider_path, place.ref, mine.manifest, "provision")
            await caller.begun()
            await asyncio.sleep(whole * step / self.moments)
            await caller.kill()
            await call(self.provider_path, place.ref, mine.manifest, "provision").answer()
            await mine.readiness()
            await only_once(place)
        assert (await mine.logs())["notes"].count("notes begins") == self.moments + 1


class CrashesInARollback(Worlds):
    moments = 4

    async def test_rolling_back_may_be_interrupted_at_any_moment(self, place: Sandbox, world: MakeWorld) -> None:
        mine = world(notes(), notes("more", 9102), state=STATE)
        await mine.provision()
        await mine.readiness()
        await ask(place, note="kept")
        snapshot = await mine.snapshot("kept")
        caller = call(self.provider_path, place.ref, mine.manifest, "restore", snapshot)
        await caller.begun()
        began = time.monotonic()
        await caller.answer()
        whole = time.monotonic() - began
        for step in range(self.moments):
            await ask(place, note="rolled back")
            await ask(place, port=9102, note="rolled back, too")
            caller = call(self.provider_path, place.ref, mine.manifest, "restore", snapshot)
            await caller.begun()
            await asyncio.sleep(whole * step / self.moments)
            await caller.kill()
            await call(self.provider_path, place.ref, mine.manifest, "restore", snapshot).answer()
            assert await ask(place) == ["kept"], f"killed at moment {step}"
            assert await ask(place, port=9102) == [], f"killed at moment {step}"
            await only_once(place)
            await mine.check()

    async def test_a_rollback_that_died_between_the_stop_and_the_files_is_completed(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        mine = world(notes(), state=STATE)
        await mine.provision()
        await mine.readiness()
        snapshot = await mine.snapshot("empty")
        await ask(place, note="rolled back")
        caller = call(self.provider_path, place.ref, mine.manifest, "restore", snapshot)
        await caller.begun()

        async def stopped() -> bool:
            looked = await place.control(f"cd {WORLD}/* && {{ test -e 1/stopped || test -e 2; }}")
            return looked.return_code == 0

        await until(stopped)
        await caller.kill()
        await mine.restore(snapshot)
        assert await ask(place) == []
        await mine.check()


# Each in one kind of sandbox in every run; in a long one in both, and at more moments.


@pytest.mark.docker
@pytest.mark.crash
@pytest.mark.soak
class TestCrashesAtTheStartOnDocker(OnDocker, CrashesAtTheStart):
    moments = 8


@pytest.mark.local
@pytest.mark.crash
class TestCrashesAtTheStartOnLocal(OnLocal, CrashesAtTheStart):
    pass


@pytest.mark.docker
@pytest.mark.crash
@pytest.mark.soak
class TestCrashesInARollbackOnDocker(OnDocker, CrashesInARollback):
    moments = 8


@pytest.mark.local
@pytest.mark.crash
class TestCrashesInARollbackOnLocal(OnLocal, CrashesInARollback):
    pass
