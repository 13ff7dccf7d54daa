"""Worlds of services that the framework starts: their life and their state, in real sandboxes."""

from __future__ import annotations

import pytest
from support.small_worlds import (
    DATABASE,
    PORT,
    Fresh,
    MakeWorld,
    OnDocker,
    OnLocal,
    Worlds,
    ask,
    death_of,
    notes,
    running,
)

from benchflow.contracts.environment import Service, StateTable, TaskSelection
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import StatelessError
from benchflow.planes.environment.manifest_environment import ManifestEnvironment

STATE = StateTable(paths=(DATABASE, "/data/more.db", "/data/never.db"))


async def begun(world: ManifestEnvironment) -> ManifestEnvironment:
    await world.provision()
    await world.readiness()
    return world


class WorldInBrief(Worlds):
    async def test_restoring_rolls_back_what_services_show_and_takes_out_what_was_not_there(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        mine = world(notes(), notes("more", 9102), state=STATE)
        await begun(mine)
        await ask(place, note="one")
        await ask(place, port=9102, note="uno")
        snapshot = await mine.snapshot("first")
        await ask(place, note="two")
        await ask(place, port=9102, note="due")
        await place.write_file("/data/never.db", b"")
        await mine.restore(snapshot)
        assert await ask(place) == ["one"]
        assert await ask(place, port=9102) == ["uno"]
        assert (await place.control("ls /data/never.db")).return_code != 0
        await ask(place, note="three")
        assert await ask(place) == ["one", "three"]
        await mine.check()


class WorldOfServices(WorldInBrief):
    async def test_a_service_that_dies_is_found(self, place: Sandbox, world: MakeWorld) -> None:
        mine = await begun(world(notes(), notes("more", 9102)))
        await mine.check()
        with pytest.raises(AssertionError):
            await ask(place, port=9102, note="die 7")
        died = await death_of(mine)
        assert "'more' ended with exit status 7" in died.message
        assert (died.file, died.key) == ("world.toml", "services.more")
        assert "told to die" in (died.log_tail or "")
        assert "notes begins" in (await mine.logs())["notes"]

    async def test_a_world_without_state_says_so_and_how_to_have_one(self, world: MakeWorld) -> None:
        mine = world(notes())
        stateful = await begun(world(notes(), state=STATE))
        snapshot = await stateful.snapshot("baseline")
        for work in (mine.snapshot("a"), mine.restore(snapshot), mine.reset(), mine.query()):
            with pytest.raises(StatelessError, match="'world' is stateless") as caught:
                await work
            assert isinstance(caught.value, RuntimeError)
            assert "[environment.state]" in (caught.value.remedy or "")
        # Nothing was done to find that out.
        await mine.check()

    async def test_resetting_goes_back_to_the_baseline_however_often(self, place: Sandbox, world: MakeWorld) -> None:
        await begun(world(notes(), state=STATE))
        await ask(place, note="something")
        for _ in range(2):
            # Whoever comes later captures no other baseline.
            await world(notes(), state=STATE).provision()
            await world(notes(), state=STATE).reset()
            assert await ask(place) == []
            await ask(place, note="something else")

    async def test_the_state_can_be_read_and_nothing_is_left_of_that(self, place: Sandbox, world: MakeWorld) -> None:
        mine = await begun(world(notes(), state=STATE))
        await ask(place, note="one")
        table = (await mine.query(rows=10)).table(DATABASE, "notes")
        assert (table.columns, table.rows, table.values) == (("id", "text"), 1, [[1, "one"]])
        before = await mine.query()
        assert before.table(DATABASE, "notes").values is None
        await ask(place, note="two")
        assert (await mine.query()).digest != before.digest
        assert (await place.control("ls /var/lib/benchflow/snapshots")).stdout == "baseline\n"

    async def test_a_world_that_is_torn_down_is_gone_and_its_sandbox_stays(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        mine = await begun(world(notes()))
        await mine.teardown()
        await mine.teardown()
        assert await running(place, "notes --db") == 0
        assert (await place.exec(["true"])).return_code == 0
        assert "notes begins" in (await mine.logs())["notes"]

    @pytest.mark.parametrize("where", [pytest.param("entrypoint", marks=pytest.mark.long), "exec"])
    async def test_services_know_their_task(self, place: Sandbox, world: MakeWorld, where: str) -> None:
        chosen = TaskSelection.model_validate({"key": "WHICH_TASK", "inject_into": where})
        await begun(world(notes(), task_selection=chosen, env={"KEY": "value", "WHICH_TASK": "another"}))
        seen = await ask(place, "/env")
        assert (seen["WHICH_TASK"], seen["KEY"]) == ("task-1", "value")

    async def test_a_world_outlives_the_episode_that_began_it(
        self, place: Sandbox, world: MakeWorld, provider: SandboxProvider
    ) -> None:
        async def episode(name: str) -> Sandbox:
            return await provider.attach(place.ref.model_copy(update={"episode": name}))

        first, second = await episode("one"), await episode("two")
        await begun(world(notes(), sandbox=first, isolation="persistent"))
        await ask(first, note="from the first")
        mine = await begun(world(notes(), sandbox=second, isolation="persistent"))
        assert await ask(second) == ["from the first"]
        assert (await mine.logs())["notes"].count("notes begins") == 1
        await mine.teardown()
        assert await running(place, "notes --db") == 0

    async def test_what_services_have_in_common_is_in_one_place(self, fresh: Fresh, world: MakeWorld) -> None:
        """A sandbox of another working directory: services run in it."""
        sandbox = await fresh(workdir="/work")
        command = f"notes --db here.db --port {PORT}"
        await begun(world(Service(name="here", command=command, port=PORT), sandbox=sandbox))
        assert (await sandbox.read_bytes("/work/here.db")).startswith(b"SQLite")


@pytest.mark.docker
class TestWorldOnDocker(OnDocker, WorldInBrief):
    pass


@pytest.mark.docker
@pytest.mark.long
class TestMoreOfTheWorldOnDocker(OnDocker, WorldOfServices):
    pass


@pytest.mark.local
class TestWorldOnLocal(OnLocal, WorldOfServices):
    pass
