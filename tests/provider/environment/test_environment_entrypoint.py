"""Worlds that the image's own entrypoint starts: their life and their state, in real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.small_worlds import (
    DATABASE,
    PORT,
    PROGRAM,
    SERVICE,
    OnDocker,
    OnLocal,
    Worlds,
    ask,
    death_of,
    make_helper,
    running,
)

from benchflow.contracts.environment import Manifest
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState, SandboxProvider
from benchflow.errors import ReadinessError, SandboxError, ServiceDiedError, StatelessError, UnsupportedFeatureError
from benchflow.planes.environment.exports import WorldContext
from benchflow.planes.environment.manifest_environment import ENTRYPOINT, ManifestEnvironment, WorldPlace
from benchflow.testing.sandbox_conformance.sandbox_fixtures import elsewhere, make_provider
from benchflow.testing.waiting import until

Build = Callable[..., Awaitable[ImageRef]]
Owned = Callable[..., Awaitable[ManifestEnvironment]]

SERVE = f"{PROGRAM} --db {DATABASE} --port {PORT}"
HEALTHY = {"http": [f"http://localhost:{PORT}/health"], "timeout_sec": 300}
STATE = {"paths": [DATABASE]}
FORMS = ["first", pytest.param("below", marks=pytest.mark.long)]
"""How an entrypoint is started: as the sandbox's first process, or below it."""


class BegunByAnEntrypoint(Worlds):
    @pytest.fixture(scope="class")
    @classmethod
    def built(cls, class_stack: str) -> Iterator[dict[str, ImageRef]]:
        """The images that the tests of a class have built, by their commands; gone with the last of them."""
        images: dict[str, ImageRef] = {}
        yield images

        async def clear() -> None:
            provider = make_provider(cls.provider_path)
            for image in images.values():
                await provider.remove_image(image)
            await provider.close()

        elsewhere(clear)

    @pytest.fixture
    def build(self, tmp_path: Path, provider: SandboxProvider, built: dict[str, ImageRef]) -> Build:
        """Builds an image that runs a shell command by itself."""

        async def make(command: str) -> ImageRef:
            if command in built:
                return built[command]
            context = tmp_path / uuid.uuid4().hex
            context.mkdir()
            (context / "notes").write_text(SERVICE.read_text())
            (context / "notes").chmod(0o755)
            (context / "Dockerfile").write_text(
                f"FROM {self.base_image}\nCOPY notes {PROGRAM}\nRUN mkdir -p /data\n"
                f'ENTRYPOINT ["/bin/sh", "-c", "{command}"]\n'
            )
            built[command] = await provider.build(ImageConfig(context=str(context), entrypoint=True, timeout_sec=600))
            return built[command]

        return make

    @pytest.fixture
    def owned(self, build: Build, provider: SandboxProvider, spec: SandboxSpec, start: object, tmp_path: Path) -> Owned:
        """Starts a sandbox whose image starts the world; the world. Keyword arguments are those of `Manifest`."""

        async def make(command: str = f"exec {SERVE}", form: str = "first", **fields: object) -> ManifestEnvironment:
            wanted = spec.model_copy(update={"image": await build(command), "entrypoint": form})
            declared = Manifest.model_validate({"name": "world", "image": "image", "readiness": HEALTHY} | fields)

            async def begin() -> WorldPlace:
                env = declared.task_env("task-1", "entrypoint")
                sandbox = await provider.start(
                    wanted.model_copy(update={"env": env}), host_id="host", queue="queue", secrets={"KEY": "value"}
                )
                return WorldPlace(sandbox, make_helper(sandbox))

            async def again() -> WorldPlace:
                await provider.remove(wanted.name)
                return await begin()

            place = await begin()
            return ManifestEnvironment(
                declared,
                WorldContext(place.sandbox, "task-1", tmp_path / "records"),
                provider,
                helper=place.helper,
                source="world.toml",
                recycle=again if fields.get("state") else None,
            )

        return make


class WorldOfAnEntrypoint(BegunByAnEntrypoint):
    async def test_it_is_ready_when_its_probes_say_so(self, owned: Owned) -> None:
        mine = await owned(ports=(PORT,), readiness=HEALTHY | {"tcp": [PORT]})
        assert await mine.start() == ()
        ready = await mine.provision()
        assert [probe.answer for probe in ready.probes] == ["HTTP 200", "connected"]
        assert ready.services == () and 0 < ready.seconds < 300
        await mine.check()
        assert "notes begins" in (await mine.logs())[ENTRYPOINT]
        assert len((await mine.logs(tail=5))[ENTRYPOINT]) == 5

    @pytest.mark.parametrize("form", FORMS)
    async def test_it_knows_its_task_and_its_secrets(self, owned: Owned, form: str) -> None:
        mine = await owned(form=form)
        await mine.readiness()
        seen = await ask(mine.sandbox, "/env")
        assert (seen["BENCHFLOW_TASK_ID"], seen["KEY"]) == ("task-1", "value")

    @pytest.mark.long
    async def test_one_that_is_never_healthy_is_told_with_its_log(self, owned: Owned) -> None:
        mine = await owned(f"exec {SERVE} --ill", readiness=HEALTHY | {"timeout_sec": 4})

        async def listens() -> bool:
            try:
                return bool(await ask(mine.sandbox, "/env"))
            except AssertionError:
                return False

        # What it answers is the question, and not how soon it can.
        await until(listens)
        with pytest.raises(ReadinessError, match="1 of 1 probes") as caught:
            await mine.readiness()
        said = caught.value.log_tail or ""
        # On a busy machine it may not be heard in time.
        assert ("HTTP 503" in said or "timed out" in said) and "entrypoint:" in said and "notes begins" in said

    @pytest.mark.parametrize("form", FORMS)
    async def test_one_that_ends_is_not_waited_for(self, owned: Owned, form: str) -> None:
        # It ends when it is waited for, however long its sandbox has taken to start.
        command = "until [ -e /go ]; do sleep 0.1; done; echo out of luck; exit 9"
        mine = await owned(command, form=form, readiness=HEALTHY)
        waiting = asyncio.create_task(mine.readiness())
        with contextlib.suppress(SandboxError):
            await mine.sandbox.control("touch /go")
        with pytest.raises(ServiceDiedError, match="entrypoint ended with exit status 9") as caught:
            await waiting
        assert "out of luck" in (caught.value.log_tail or "")

    @pytest.mark.parametrize("form", FORMS)
    async def test_one_that_dies_later_is_found_by_the_next_look(self, owned: Owned, form: str) -> None:
        mine = await owned(form=form)
        await mine.readiness()
        await mine.check()
        with pytest.raises(Exception):  # noqa: B017 the sandbox may end with it
            await ask(mine.sandbox, note="die 7")
        died = await death_of(mine)
        assert "entrypoint ended with exit status 7" in died.message
        assert "told to die" in (died.log_tail or "")

    @pytest.mark.long
    async def test_one_that_leaves_its_services_in_the_background_lives_as_long_as_they_do(self, owned: Owned) -> None:
        mine = await owned(f"{SERVE} --daemon --late 0.5", form="below")
        await mine.readiness()
        await mine.check()
        await mine.sandbox.control("kill -9 $(pidof -x notes || pgrep -f bin/notes)")
        assert "entrypoint ended with exit status 0" in (await death_of(mine)).message

    async def test_restoring_goes_through_what_it_has_open(self, owned: Owned) -> None:
        mine = await owned(state=STATE)
        await mine.readiness()
        await ask(mine.sandbox, note="one")
        snapshot = await mine.snapshot("first")
        await ask(mine.sandbox, note="two")
        await mine.restore(snapshot)
        assert await ask(mine.sandbox) == ["one"]
        assert (await mine.logs())[ENTRYPOINT].count("notes begins") == 1

    async def test_resetting_does_nothing_and_recycling_begins_anew(self, owned: Owned) -> None:
        mine = await owned(state=STATE)
        await mine.provision()
        await ask(mine.sandbox, note="one")
        await mine.reset()
        assert await ask(mine.sandbox) == ["one"]
        await mine.recycle()
        assert await ask(mine.sandbox) == []
        await mine.check()

    async def test_what_cannot_be_begun_anew_says_so(self, owned: Owned, provider: SandboxProvider) -> None:
        mine = await owned(state=STATE)
        await mine.provision()
        bare = ManifestEnvironment(
            mine.manifest, mine.context, provider, helper=make_helper(mine.sandbox), source="world.toml"
        )
        with pytest.raises(UnsupportedFeatureError, match="second time"):
            await bare.recycle()
        stateless = await owned()
        with pytest.raises(StatelessError):
            await stateless.reset()

    async def test_one_below_is_torn_down_and_its_sandbox_stays(self, owned: Owned) -> None:
        mine = await owned(form="below")
        await mine.readiness()
        await mine.teardown()
        await mine.teardown()
        assert await running(mine.sandbox, "bin/notes") == 0


@pytest.mark.docker
class TestEntrypointOnDocker(OnDocker, BegunByAnEntrypoint):
    async def test_one_that_has_ended_is_dead_before_the_daemon_knows(
        self, owned: Owned, provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = await owned()
        await mine.readiness()
        with pytest.raises(Exception):  # noqa: B017 its sandbox ends with it
            await ask(mine.sandbox, note="die 7")
        looks = 3

        async def behind(name: str) -> EntrypointState:
            nonlocal looks
            looks -= 1
            state = await ask_provider(name)
            return state.model_copy(update={"running": True, "exit_code": None}) if looks >= 0 else state

        ask_provider = provider.entrypoint_state
        monkeypatch.setattr(provider, "entrypoint_state", behind)
        with pytest.raises(ServiceDiedError, match="entrypoint ended with exit status 7"):
            await mine.check()
        assert looks < 0


@pytest.mark.docker
@pytest.mark.long
class TestMoreOfEntrypointsOnDocker(OnDocker, WorldOfAnEntrypoint):
    pass


@pytest.mark.local
class TestEntrypointOnLocal(OnLocal, WorldOfAnEntrypoint):
    pass
