"""Entrypoints of images, images based on built ones, ports, and sandboxes that several rollouts share."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ImagePullError, SandboxError, SandboxLostError, SandboxStartError
from benchflow.testing.sandbox_conformance import other_processes
from benchflow.testing.sandbox_conformance.build_tests import BuildContext
from benchflow.testing.sandbox_conformance.lifecycle_tests import KILLS
from benchflow.testing.sandbox_conformance.network_tests import PORT, SERVE, fetched
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    SandboxFixtures,
    Start,
    asleep,
    elsewhere,
    leave,
    make_provider,
    nap,
    napping,
)
from benchflow.testing.waiting import until

Begin = Callable[..., Awaitable[Sandbox]]
"""Type of the fixture `begin`."""

FORMS = ("first", "below")
"""The values of `SandboxSpec.entrypoint` that run an image's entrypoint."""

WORLD = """#!/bin/sh
echo "$$ $(id -un) $(pwd) $1 $PLAIN $SECRET" >>/world/begun
echo "the world says $1"
mkfifo /world/ended
# Open for both: opened anew each time, it might be read once more while the last worker has not closed it yet.
exec 9<>/world/ended
while :; do
  sh -c 'env -i setsid sh -c "sleep $WORKER; echo >/world/ended" &' 9<&-
  echo >>/world/workers
  read it <&9
done
"""
"""Entrypoint that logs its start, restarts its worker (own session, no parent, no environment) whenever that ends, and
stays.
"""

COMBINED = [
    pytest.param(('CMD ["echo", "$A"]',), "$A", id="exec"),
    pytest.param(("CMD echo shell $A",), "shell a", id="shell"),
    pytest.param(('ENTRYPOINT ["echo", "e"]', "CMD c"), "e /bin/sh -c c", id="exec and shell"),
    pytest.param(('CMD ["c"]', 'ENTRYPOINT ["echo", "e"]'), "e c", id="exec and exec"),
    pytest.param(("ENTRYPOINT echo e", 'CMD ["c"]'), "e", id="shell and exec"),
    pytest.param(('SHELL ["/bin/sh", "-ec"]', "CMD false; echo no", "CMD echo yes"), "yes", id="another shell"),
]
"""Instructions of a Dockerfile, and the output of the command that they combine to."""

NO_ENTRYPOINT = "this provider runs no entrypoint of an image"
"""Reason for which tests of entrypoints are skipped."""


class EntrypointTests(SandboxFixtures):
    """Tests of `SandboxSpec.entrypoint`, `start(secrets=)`, `entrypoint_state` and `end_entrypoint`."""

    @pytest.fixture
    def plan(self, tmp_path: Path, provider: SandboxProvider, discard: list[ImageRef]) -> BuildContext:
        """Return a build context of images with an entrypoint; skip the test if the provider can't run them."""
        if not provider.capabilities().dockerfile:
            pytest.skip("this provider carries out no Dockerfile")
        if not provider.capabilities().entrypoint:
            pytest.skip(NO_ENTRYPOINT)
        context = BuildContext(tmp_path / "world", self.base_image, provider, discard, entrypoint=True)
        (context.root / "world.sh").write_text(WORLD)
        (context.root / "world.sh").chmod(0o755)
        return context

    @pytest.fixture
    def begin(self, provider: SandboxProvider, spec: SandboxSpec, start: Start) -> Begin:
        """Return a function that starts a sandbox with secrets. The fixture `start` removes it."""

        async def begin(secrets: dict[str, str] | None = None, **wanted: Any) -> Sandbox:
            fields = {"name": f"benchflow-test-{uuid.uuid4().hex[:12]}"} | wanted
            asked = spec.model_copy(update=fields)
            return await provider.start(asked, host_id="host", queue="queue", secrets=secrets)

        return begin

    @pytest.fixture(scope="class")
    @classmethod
    def world_images(cls, class_stack: str) -> Iterator[list[ImageRef]]:
        """Yield a list for the image that `world_image` builds. It is removed after the tests of the class."""
        images: list[ImageRef] = []
        yield images

        async def clear() -> None:
            provider = make_provider(cls.provider_path)
            for image in images:
                await provider.remove_image(image)
            await provider.close()

        elsewhere(clear)

    @pytest_asyncio.fixture
    async def world_image(self, plan: BuildContext, world_images: list[ImageRef]) -> ImageRef:
        """Return the image whose entrypoint is `WORLD`, built once a class."""
        if not world_images:
            config = plan.write(
                *("RUN useradd -m keeper && mkdir -m 1777 /world", "COPY world.sh /usr/local/bin/world"),
                *("WORKDIR /world", "USER keeper", 'ENTRYPOINT ["world"]', 'CMD ["hello"]'),
            )
            world_images.append(await plan.build_config(config, to_keep=True))
        return world_images[0]

    @pytest.mark.parametrize("form", FORMS)
    async def test_an_entrypoint_runs_once_as_the_image_says_and_with_its_secrets(
        self, world_image: ImageRef, begin: Begin, provider: SandboxProvider, form: str
    ) -> None:
        worker, secret = nap(), 'it\'s\n"$HOME"\tend\n'
        wanted: dict[str, Any] = {"name": "benchflow-test-" + nap(), "entrypoint": form}
        wanted |= {"image": world_image, "env": {"WORKER": worker, "PLAIN": "plain"}}
        sandbox = await begin({"SECRET": secret}, **wanted)
        await asleep(sandbox, worker)

        async def is_heard() -> str:
            return (await provider.entrypoint_state(sandbox.ref.name)).log

        await until(is_heard)
        again = await begin({"SECRET": secret}, **wanted)
        assert again.ref.handle == sandbox.ref.handle
        said = (await sandbox.read_bytes("/world/begun")).decode()
        assert said.partition(" ")[2] == f"keeper /world hello plain {secret}\n"
        assert sandbox.ref.workdir == "/world"
        state = await provider.entrypoint_state(sandbox.ref.name)
        assert state.running and state.exit_code is None and state.log == "the world says hello\n"
        # The secret is in the environment of the entrypoint only, not of commands.
        assert (await sandbox.exec(["sh", "-c", 'echo "$SECRET" "$PLAIN" "$(id -un)"'])).stdout == " plain root\n"
        assert (await sandbox.control("ls -d /logs/agent")).return_code == 0

    @pytest.mark.parametrize("form", FORMS)
    async def test_what_an_entrypoint_starts_stays_and_what_the_agent_started_goes(
        self, world_image: ImageRef, begin: Begin, form: str
    ) -> None:
        worker, mine, others_, alike = nap(), nap(), nap(), nap()
        sandbox = await begin(image=world_image, entrypoint=form, env={"WORKER": worker})
        await asleep(sandbox, worker)
        await sandbox.mark_baseline()
        await sandbox.exec(["pkill", "-xf", f"sleep {worker}"])

        async def anew() -> bool:
            return (await sandbox.control("cat /world/workers")).stdout == "\n\n"

        await until(anew)
        await asleep(sandbox, worker)
        await leave(sandbox, mine)
        await leave(sandbox, others_, user="keeper")
        # Each process waits for the next, so that only the last one remains.
        twice = f"setsid -w setsid -w sh -c 'sleep {alike} &' >/dev/null 2>&1"
        await sandbox.exec(["sh", "-c", twice], user="nobody")
        await asleep(sandbox, alike)
        find = 'pgrep -xf "$1"', f"sleep {worker}"
        before = await sandbox.control(*find)
        assert await sandbox.kill_processes() == 3
        assert await napping(sandbox, worker, mine, others_, alike) == [worker]
        assert (await sandbox.control(*find)).stdout == before.stdout
        assert await sandbox.kill_processes() == 0

    async def test_an_entrypoint_may_end_and_says_how(
        self, plan: BuildContext, begin: Begin, provider: SandboxProvider
    ) -> None:
        image = await plan.build('CMD echo "one $A"; echo two >&2; while [ ! -e /stop ]; do sleep 0.05; done; exit 7')
        for form in FORMS:
            sandbox = await begin({"A": "1"}, image=image, entrypoint=form)
            assert (await provider.entrypoint_state(sandbox.ref.name)).running
            # A sandbox that ends with its entrypoint may be gone before it answers.
            with contextlib.suppress(SandboxLostError):
                await sandbox.write_file("/stop", "")

            async def ended(name: str = sandbox.ref.name) -> bool:
                return not (await provider.entrypoint_state(name)).running

            await until(ended)
            state = await provider.entrypoint_state(sandbox.ref.name)
            # Not every provider knows the order of stdout and stderr.
            assert (state.exit_code, sorted(state.log.splitlines())) == (7, ["one 1", "two"]), form
        assert (await sandbox.exec(["echo", "here"])).stdout == "here\n"

    async def test_an_entrypoint_below_can_be_ended_with_all_it_started(
        self, world_image: ImageRef, begin: Begin, provider: SandboxProvider
    ) -> None:
        worker = nap()
        wanted = {"image": world_image, "entrypoint": "below", "env": {"WORKER": worker}}
        sandbox = await begin(**wanted, name="benchflow-test-" + nap())
        await asleep(sandbox, worker)
        for _ in range(2):
            await provider.end_entrypoint(sandbox.ref.name)
            assert await napping(sandbox, worker) == []
        state = await provider.entrypoint_state(sandbox.ref.name)
        assert not state.running and state.exit_code == 137 and "the world says" in state.log
        # The sandbox still exists, so that the entrypoint is not started again.
        await begin(**wanted, name=sandbox.ref.name)
        assert await napping(sandbox, worker) == []

    async def test_a_long_log_is_shown_from_its_end(
        self, plan: BuildContext, begin: Begin, provider: SandboxProvider
    ) -> None:
        image = await plan.build("CMD seq 1 100000; echo done; exec sleep 1000")
        for form in FORMS:
            sandbox = await begin(image=image, entrypoint=form)

            async def done(name: str = sandbox.ref.name) -> bool:
                return (await provider.entrypoint_state(name)).log.endswith("100000\ndone\n")

            await until(done)
            assert len((await provider.entrypoint_state(sandbox.ref.name)).log) <= 64 * 1024

    @KILLS
    @pytest.mark.parametrize("form", FORMS)
    async def test_a_process_that_starts_a_world_may_be_killed_at_any_moment(
        self, plan: BuildContext, provider: SandboxProvider, spec: SandboxSpec, start: Start, form: str, kills: int
    ) -> None:
        length = nap()
        image = await plan.build(f'CMD echo "$SECRET" >>/begun; exec sleep {length}')
        spec = spec.model_copy(update={"image": image, "entrypoint": form})
        told = {"SECRET": "canary"}
        whole = await _time_of(other_processes.start(self.provider_path, spec, secrets=told))
        await provider.remove(spec.name)
        for step in range(kills):
            wanted = spec.model_copy(update={"name": f"{spec.name}-{step}"})
            caller = other_processes.start(self.provider_path, wanted, secrets=told)
            await caller.begun()
            await asyncio.sleep(whole * step / kills)
            await caller.kill()
            both = [provider.start(wanted, host_id="h", queue="q", secrets=told) for _ in range(2)]
            sandbox, _ = await asyncio.gather(*both)

            # The write to /begun comes before the exec of sleep.
            await asleep(sandbox, length)
            assert (await sandbox.control('ps -eo args | grep -cx "$1"', f"sleep {length}")).stdout == "1\n", step
            assert await sandbox.read_bytes("/begun") == b"canary\n"
            await provider.remove(wanted.name)

    async def test_an_image_with_nothing_to_run_is_refused(self, plan: BuildContext, begin: Begin) -> None:
        image = await plan.build("CMD []", "ENTRYPOINT []")
        for form in FORMS:
            with pytest.raises(SandboxStartError, match="neither ENTRYPOINT nor CMD") as caught:
                await begin(image=image, entrypoint=form)
            assert caught.value.remedy and caught.value.key == "image"

    async def test_a_sandbox_without_an_entrypoint_has_no_state_of_one(
        self, sandbox: Sandbox, provider: SandboxProvider
    ) -> None:
        with pytest.raises(SandboxError, match="does not run its image's entrypoint"):
            await provider.entrypoint_state(sandbox.ref.name)

    @pytest.mark.parametrize(("steps", "argv"), COMBINED)
    async def test_entrypoint_and_command_combine_as_in_docker(
        self, plan: BuildContext, begin: Begin, provider: SandboxProvider, steps: tuple[str, ...], argv: str
    ) -> None:
        sandbox = await begin(image=await plan.build("ENV A=a", *steps), entrypoint="below")

        async def log() -> str:
            state = await provider.entrypoint_state(sandbox.ref.name)
            return "" if state.running else state.log

        assert await until(log) == f"{argv}\n"


class BaseImageTests(SandboxFixtures):
    """Tests of `ImageConfig.bases`."""

    @pytest.fixture
    def base(self, tmp_path: Path, provider: SandboxProvider, discard: list[ImageRef]) -> BuildContext:
        """Return a build context of base images with an entrypoint; skip the test if no Dockerfile can be built."""
        if not provider.capabilities().dockerfile:
            pytest.skip("this provider carries out no Dockerfile")
        return BuildContext(tmp_path / "base", self.base_image, provider, discard, entrypoint=True)

    @pytest.fixture
    def runs_entrypoints(self, provider: SandboxProvider) -> None:
        """Skip the test if the provider runs no entrypoints."""
        if not provider.capabilities().entrypoint:
            pytest.skip(NO_ENTRYPOINT)

    @pytest.fixture
    def upper(self, tmp_path: Path, provider: SandboxProvider, discard: list[ImageRef]) -> BuildContext:
        """Return a build context of images that are based on those of `base`."""
        return BuildContext(tmp_path / "upper", self.base_image, provider, discard)

    def upon(self, upper: BuildContext, base: ImageRef, *lines: str, name: str = "world") -> ImageConfig:
        """Write a Dockerfile of these lines. Return the configuration in which `name` in FROM stands for `base`."""
        (upper.root / "Dockerfile").write_text("\n".join(lines) + "\n")
        return ImageConfig(context=str(upper.root), timeout_sec=600, bases={name: base.reference})

    async def test_a_dockerfile_builds_upon_an_image_that_was_built_here(
        self, base: BuildContext, upper: BuildContext, start: Start
    ) -> None:
        below = await base.build(
            "ENV LOW=low BOTH=low", "RUN useradd keeper && echo base >/base", "WORKDIR /deep", "USER keeper", "CMD x"
        )
        config = self.upon(upper, below, "FROM world:latest AS it", "RUN echo $LOW$(id -un)$(cat /base) >/tmp/up")
        image = await upper.build_config(config)
        assert image.workdir == "/deep"
        sandbox = await start(image=image)
        assert await sandbox.read_bytes("/tmp/up") == b"lowkeeperbase\n"
        assert (await sandbox.exec(["sh", "-c", "echo $LOW; pwd"])).stdout == "low\n/deep\n"
        assert len([one for one in image.warnings if "stands for" in one]) <= 1
        assert await upper.build_config(config) == image

    async def test_the_name_may_be_an_argument_and_over_several_lines(
        self, base: BuildContext, upper: BuildContext, start: Start
    ) -> None:
        below = await base.build("RUN echo base >/base")
        config = self.upon(
            upper, below, "ARG BASE=reg/world", "FROM \\", "  ${BASE}:1", "RUN cat /base", name="reg/world:1"
        )
        assert await (await start(image=await upper.build_config(config))).read_bytes("/base") == b"base\n"

    async def test_an_image_upon_a_changed_one_is_another(self, base: BuildContext, upper: BuildContext) -> None:
        one = await base.build("RUN echo 1 >/base")
        two = await base.build("RUN echo 2 >/base")
        digest = uuid.uuid4().hex
        seen = set()
        for below in (one, two):
            config = self.upon(upper, below, "FROM world", "RUN cp /base /up")
            for given in (None, digest):
                seen.add((await upper.build_config(config.model_copy(update={"digest": given}))).reference)
        assert len(seen) == 4

    @pytest.mark.usefixtures("runs_entrypoints")
    async def test_an_image_upon_another_runs_the_others_entrypoint_if_asked(
        self, base: BuildContext, upper: BuildContext, start: Start
    ) -> None:
        length = nap()
        below = await base.build(f'CMD ["sleep", "{length}"]')
        image = await upper.build_config(self.upon(upper, below, "FROM world", "RUN true"))
        assert await napping(await start(image=image), length) == []
        await asleep(await start(image=image, entrypoint="below"), length)

    async def test_an_image_that_is_not_there_to_build_upon_is_named(
        self, base: BuildContext, upper: BuildContext, provider: SandboxProvider
    ) -> None:
        gone = await base.build("RUN echo gone >/gone")
        await provider.remove_image(gone)
        with pytest.raises(ImagePullError, match="the/world") as caught:
            await upper.build_config(self.upon(upper, gone, "# a comment", "FROM the/world", name="the/world"))
        assert caught.value.remedy and (caught.value.file, caught.value.key) == ("upper/Dockerfile", "FROM")

    @pytest.mark.usefixtures("runs_entrypoints")
    async def test_an_entrypoint_resets_the_command_of_the_image_below(
        self, base: BuildContext, upper: BuildContext, start: Start, provider: SandboxProvider
    ) -> None:
        below = await base.build('CMD ["echo", "low"]')
        config = self.upon(upper, below, "FROM world", 'ENTRYPOINT ["echo", "up"]')
        image = await upper.build_config(config.model_copy(update={"entrypoint": True}))
        sandbox = await start(image=image, entrypoint="below")

        async def log() -> str:
            return (await provider.entrypoint_state(sandbox.ref.name)).log

        assert await until(log) == "up\n"


class SharedNetworkTests(SandboxFixtures):
    """Tests of `SandboxRef.episode`, the rollout namespace of a shared sandbox."""

    async def test_each_episode_has_executions_of_its_own(
        self, sandbox: Sandbox, other: SandboxProvider, room: str
    ) -> None:
        one, two = [await other.attach(sandbox.ref.model_copy(update={"episode": room[1:] + end})) for end in "12"]
        count = ["sh", "-c", f"echo x >>{room}/count; wc -l <{room}/count"]
        assert (one.ref.episode, sandbox.ref.episode) == (f"{room[1:]}1", "")
        assert (await sandbox.exec_once(room, count)).stdout == "1\n"
        assert not await one.was_started(room)
        assert [(await each.exec_once(room, count)).stdout for each in (one, two, one)] == ["2\n", "3\n", "2\n"]
        assert await two.was_started(room)

    async def test_an_episodes_kill_is_not_anothers(self, still: Sandbox, other: SandboxProvider, room: str) -> None:
        one, two = [await other.attach(still.ref.model_copy(update={"episode": room[1:] + end})) for end in "12"]
        first, second = nap(), nap()
        tasks = [
            asyncio.create_task(each.exec_once("key", ["sleep", length]))
            for each, length in ((one, first), (two, second))
        ]
        await asleep(still, first, second)
        await two.kill_once("key")
        assert (await tasks[1]).return_code == 137
        assert await napping(still, first, second) == [first]
        await one.kill_once("key")
        assert (await tasks[0]).return_code == 137


class PortTests(SandboxFixtures):
    """Tests of `SandboxSpec.ports` and `expose_port`."""

    async def test_a_port_of_each_of_two_sandboxes_is_reached_from_this_host(
        self, provider: SandboxProvider, start: Start
    ) -> None:
        if "public" not in provider.capabilities().network_modes:
            pytest.skip("the provider has no public network")
        sandboxes = await asyncio.gather(*(start(network_mode="public", ports=(PORT,)) for _ in range(2)))
        for number, sandbox in enumerate(sandboxes):
            assert (await sandbox.exec(["sh", "-c", SERVE.format(number)])).return_code == 0
        addresses = [await sandbox.expose_port(PORT) for sandbox in sandboxes]
        assert [await fetched(address) for address in addresses] == [b"0\n", b"1\n"]

    async def test_without_a_network_a_port_is_refused(self, provider: SandboxProvider, start: Start) -> None:
        if "no-network" not in provider.capabilities().network_modes:
            pytest.skip("the provider has a network in any case")
        sandbox = await start(network_mode="no-network", ports=(PORT,))
        with pytest.raises(SandboxError, match="no network") as caught:
            await sandbox.expose_port(PORT)
        assert caught.value.key == "network_mode" and caught.value.remedy


async def _time_of(caller: other_processes.Caller) -> float:
    """Return the seconds from the start of a caller's call to its answer."""
    loop = asyncio.get_running_loop()
    await caller.begun()
    began = loop.time()
    await caller.answer()
    return loop.time() - began
