"""Whoever works on a world may die at any step; whoever comes next finishes what was asked for."""

from __future__ import annotations

import pytest
from support.small_worlds import DATABASE, MakeWorld, OnDocker, OnLocal, Worlds, ask, notes, running
from support.world_callers import call

from benchflow.contracts.environment import StateTable
from benchflow.contracts.sandbox import Sandbox

STATE = StateTable(paths=(DATABASE, "/data/more.db"))


async def only_once(sandbox: Sandbox) -> None:
    """Each service runs, and is served by one process."""
    assert await running(sandbox, "/usr/local/bin/notes --db /data/notes.db") == 1
    assert await running(sandbox, "/usr/local/bin/notes --db /data/more.db") == 1
    assert await running(sandbox, "benchflow-world") >= 1


class Crashes(Worlds):
    every: int | None = None
    """At each how many-th of its calls of the sandbox somebody is to die; None for few of them."""

    def steps(self, calls: int, few: list[int]) -> list[int]:
        return [*range(1, calls + 1, self.every)] if self.every else few

    async def test_who_starts_a_world_may_die_at_any_step(self, place: Sandbox, world: MakeWorld) -> None:
        mine, deaths = world(notes(), notes("more", 9102)), 0
        calls = (await call(self.provider_path, place.ref, mine.manifest, "provision").answer())["calls"]
        # There are ten at least. How often one looks until a service is there is not always the same.
        steps = self.steps(calls, [6])
        for step in steps:
            # Each epoch is given the time to say that it began.
            await mine.readiness()
            await mine.teardown()
            deaths += await call(self.provider_path, place.ref, mine.manifest, "provision", fatal=step).died()
            await mine.provision()
            await mine.readiness()
            await only_once(place)
        assert (await mine.logs())["notes"].count("notes begins") == len(steps) + 1
        assert deaths

    async def test_who_rolls_back_may_die_at_any_step(self, place: Sandbox, world: MakeWorld) -> None:
        mine, deaths = world(notes(), notes("more", 9102), state=STATE), 0
        await mine.provision()
        await mine.readiness()
        await ask(place, note="kept")
        snapshot = await mine.snapshot("kept")
        restoring = (self.provider_path, place.ref, mine.manifest, "restore", snapshot)
        calls = (await call(*restoring).answer())["calls"]
        # Between the end of the services and the files, and when the services start.
        for step in self.steps(calls, [calls // 4, calls * 2 // 3]):
            await ask(place, note="rolled back")
            await ask(place, port=9102, note="rolled back, too")
            deaths += await call(*restoring, fatal=step).died()
            await mine.restore(snapshot)
            assert await ask(place) == ["kept"], f"died before step {step}"
            assert await ask(place, port=9102) == [], f"died before step {step}"
            await only_once(place)
            await mine.check()
        assert deaths


@pytest.mark.local
class TestCrashesOnLocal(OnLocal, Crashes):
    pass


@pytest.mark.local
@pytest.mark.long
class TestCrashesAtEachStepOnLocal(OnLocal, Crashes):
    every = 1


@pytest.mark.docker
@pytest.mark.long
class TestCrashesAtManyStepsOnDocker(OnDocker, Crashes):
    every = 3
