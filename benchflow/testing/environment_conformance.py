"""Conformance tests for environments. One that passes them all can be branched, rolled back and resumed.

An environment is a subclass of `benchflow.contracts.world.StatefulEnvironment`; docs/custom-environment.md shows how to
write one. This suite then shows what is missing (pytest and pytest-asyncio must be installed):

    # test_my_environment.py
    from benchflow.testing.environment_conformance import EnvironmentConformance

    class TestMyEnvironment(EnvironmentConformance):
        environment_path = "my_package.world:MyEnvironment"
        provider_path = "benchflow.planes.sandbox.docker:DockerDriver"
        base_image = "my-image:latest"

        async def change(self, sandbox):
            await sandbox.exec(["curl", "-sf", "-X", "POST", "http://localhost:9000/add"])

`environment_path` is a path, because other processes create the environment, too, and are killed at its calls of the
sandbox. `base_image` is used where the environment names no image of its own; override the fixture `image_config` for
one that is built. Override `prepare` to put into each sandbox what a task's image would have.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from benchflow.contracts.environment import DEFAULT_TASK_KEY, Manifest, StateSnapshot
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import StatelessError
from benchflow.planes.environment.environment_code import describe_environment, load_environment
from benchflow.planes.environment.exports import WorldContext
from benchflow.testing.sandbox_conformance.other_processes import Caller
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep, SandboxFixtures, Start, make_provider

TASK = "task-1"
"""Task id that is injected into the environment."""

Open = Callable[..., StatefulEnvironment]
"""Type of the fixture `open`."""

Begin = Callable[..., Awaitable[Sandbox]]
"""Type of the fixture `begin`."""


@pytest.mark.asyncio
class EnvironmentConformance(SandboxFixtures):
    """The whole suite. Subclass it under a name that pytest collects, set `environment_path`, and override `change`."""

    environment_path: ClassVar[str]
    """`module:Class`, of an installed module or one in the current directory."""

    provider_path: ClassVar[str] = "benchflow.planes.sandbox.docker:DockerDriver"
    """`module:attribute` of a callable that returns the provider, or driver, of the sandboxes."""

    max_deaths: ClassVar[int] = 4
    """Maximum number of processes that are killed in one method, at calls of the sandbox spread over it."""

    async def prepare(self, sandbox: Sandbox) -> None:
        """Put into a new sandbox what the image of a task would have. By default nothing."""

    async def change(self, sandbox: Sandbox) -> None:
        """Change the environment's state as an agent would. Each call must lead to a different state."""
        raise NotImplementedError("say how the state is changed")

    # --- fixtures ------------------------------------------------------------------------------------------------

    @pytest.fixture(scope="class")
    @classmethod
    def environment(cls) -> type[StatefulEnvironment]:
        """Return the environment's class."""
        return load_environment(cls.environment_path)

    @pytest.fixture(scope="class")
    @classmethod
    def declared(cls, environment: type[StatefulEnvironment]) -> Manifest:
        """Return the manifest that the class declares."""
        return describe_environment(environment, cls.environment_path)

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, declared: Manifest) -> ImageConfig:
        """Return the configuration of the sandboxes' image. Override it for one that is built."""
        return ImageConfig(image=declared.image or cls.base_image)

    @pytest.fixture
    def begin(self, start: Start, declared: Manifest) -> Begin:
        """Return a function that starts a sandbox without an environment; its keyword arguments set `SandboxSpec`."""

        async def fresh(**wanted: Any) -> Sandbox:
            network = {"network_mode": "public", "ports": declared.ports} if declared.ports else {}
            fields: dict[str, Any] = {**network, **wanted}
            sandbox = await start(**fields)
            if "image" not in wanted:
                await self.prepare(sandbox)
            return sandbox

        return fresh

    @pytest_asyncio.fixture
    async def place(self, begin: Begin) -> Sandbox:
        """Return a sandbox of this test alone."""
        return await begin()

    @pytest.fixture
    def open(self, environment: type[StatefulEnvironment], place: Sandbox, tmp_path: Path) -> Open:
        """Return a function that makes a new object of a sandbox's environment, as another process would."""

        def make(sandbox: Sandbox | None = None, namespace: str = "") -> StatefulEnvironment:
            where = sandbox or place
            return environment(context_in(where, _records(tmp_path, where), namespace))

        return make

    @pytest.fixture
    def stateful(self, environment: type[StatefulEnvironment]) -> None:
        """Skip a test of the state if the environment declares none."""
        if not environment.is_stateful:
            pytest.skip("this environment declares no state")

    # --- its life ------------------------------------------------------------------------------------------------

    async def test_a_world_is_ready_when_it_is_provisioned(self, open: Open) -> None:
        await open().provision()
        await open().readiness()
        await open().check()
        assert all(isinstance(text, str) for text in (await open().logs(tail=100)).values())

    async def test_one_that_runs_is_left_as_it_is(self, open: Open, place: Sandbox, stateful: None) -> None:
        await open().provision()
        await self.change(place)
        before = await open().query()
        await open().provision()
        assert (await open().query()).digest == before.digest

    async def test_it_is_torn_down_however_often_and_its_sandbox_stays(self, open: Open, place: Sandbox) -> None:
        await open().provision()
        await open().teardown()
        await open().teardown()
        assert (await place.exec(["true"])).return_code == 0

    async def test_what_an_agent_leaves_running_is_killed_and_the_world_stays(self, open: Open, place: Sandbox) -> None:
        await open().provision()
        await place.kill_processes()
        await open().check()

    async def test_who_provisions_may_die_at_any_step(self, open: Open, begin: Begin, tmp_path: Path) -> None:
        calls, deaths = await self._count(await begin(), "provision", None, tmp_path), 0
        for step in self._steps(calls):
            sandbox = await begin()
            deaths += await self._call(sandbox, "provision", None, tmp_path, fatal=step).died()
            await open(sandbox).provision()
            await open(sandbox).check()
            await sandbox.stop()
        assert deaths

    # --- its state -----------------------------------------------------------------------------------------------

    async def test_a_stateless_one_says_so(self, open: Open, environment: type[StatefulEnvironment]) -> None:
        if environment.is_stateful:
            pytest.skip("this environment has a state")
        await open().provision()
        for work in (open().query(), open().snapshot("one"), open().reset()):
            with pytest.raises(StatelessError):
                await work

    async def test_the_state_is_read_and_tells_whether_it_is_the_same(
        self, open: Open, place: Sandbox, stateful: None
    ) -> None:
        await open().provision()
        before = await open().query()
        assert (await open().query()).digest == before.digest
        await self.change(place)
        after = await open().query()
        assert after.digest != before.digest
        assert type(after).model_validate_json(after.model_dump_json()) == after
        assert await open().observe() == await open().observe()

    async def test_a_state_is_put_back_however_often(self, open: Open, place: Sandbox, stateful: None) -> None:
        await open().provision()
        await self.change(place)
        before = await open().query()
        snapshot = await open().snapshot("one")
        for _ in range(2):
            await self.change(place)
            await open().restore(snapshot)
            assert (await open().query()).digest == before.digest
            await open().readiness()

    async def test_a_snapshot_is_of_one_moment_and_taken_once(self, open: Open, place: Sandbox, stateful: None) -> None:
        await open().provision()
        before = await open().query()
        first = await open().snapshot("one")
        await self.change(place)
        assert await open().snapshot("one") == first
        second = await open().snapshot("two")
        assert second != first
        await open().restore(first)
        assert (await open().query()).digest == before.digest
        assert StateSnapshot.model_validate_json(first.model_dump_json()) == first

    async def test_the_baseline_is_of_the_beginning_whoever_provisions_again(
        self, open: Open, place: Sandbox, stateful: None
    ) -> None:
        await open().provision()
        before, baseline = await open().query(), open().context.baseline()
        for _ in range(2):
            await self.change(place)
            await open().provision()
            assert open().context.baseline() == baseline
            await open().reset()
            assert (await open().query()).digest == before.digest

    async def test_each_episode_of_a_shared_sandbox_has_its_own_baseline(
        self, open: Open, place: Sandbox, stateful: None
    ) -> None:
        await open(namespace="e1-").provision()
        await self.change(place)
        later = await open().query()
        await open(namespace="e2-").provision()
        await self.change(place)
        await open(namespace="e2-").reset()
        assert (await open().query()).digest == later.digest

    async def test_the_evidence_is_the_state(self, open: Open, place: Sandbox, tmp_path: Path, stateful: None) -> None:
        await open().provision()
        await self.change(place)
        world = open()
        seen = await world.collect_evidence("final", world.context.baseline(), tmp_path / "snapshots", 2**30)
        assert seen.state is not None
        assert seen.state.digest == (await open().query()).digest

    async def test_who_puts_a_state_back_may_die_at_any_step(
        self, open: Open, place: Sandbox, tmp_path: Path, stateful: None
    ) -> None:
        await open().provision()
        await self.change(place)
        before = await open().query()
        snapshot, deaths = await open().snapshot("one"), 0
        for step in self._steps(await self._count(place, "restore", snapshot, tmp_path)):
            await self.change(place)
            deaths += await self._call(place, "restore", snapshot, tmp_path, fatal=step).died()
            await open().restore(snapshot)
            assert (await open().query()).digest == before.digest
        assert deaths

    # --- copies --------------------------------------------------------------------------------------------------

    async def test_copies_begin_with_the_state_and_do_not_see_each_other(
        self,
        open: Open,
        place: Sandbox,
        begin: Begin,
        provider: SandboxProvider,
        keep: Keep,
        tmp_path: Path,
        stateful: None,
    ) -> None:
        if not provider.capabilities().snapshot:
            pytest.skip("this provider takes no snapshots")
        await open().provision()
        first, baseline = await open().query(), open().context.baseline()
        await self.change(place)
        before, observed = await open().query(), await open().observe()
        snapshot = await open().snapshot("branch")
        image = await keep(place)
        copies = [await begin(image=image) for _ in range(2)]
        for copy in copies:
            await open(copy).restore(snapshot)
            context_in(copy, _records(tmp_path, copy)).inherit_baseline(baseline)
            await open(copy).provision()
            assert await open(copy).observe() == observed
        await self.change(place)
        await self.change(copies[0])
        await self.change(copies[0])
        assert (await open(copies[1]).query()).digest == before.digest
        after = {(await open(where).query()).digest for where in (place, *copies)}
        assert len(after) == 3
        await open(copies[0]).reset()
        assert (await open(copies[0]).query()).digest == first.digest
        await copies[0].kill_processes()
        await open(copies[0]).check()

    # --- deaths --------------------------------------------------------------------------------------------------

    def _steps(self, calls: int) -> list[int]:
        """Return the numbers of the calls, of so many, at which a process is killed: at most `max_deaths`."""
        count = min(calls, self.max_deaths)
        return sorted({1 + calls * number // count for number in range(count)})

    async def _count(self, sandbox: Sandbox, method: str, snapshot: StateSnapshot | None, records: Path) -> int:
        """Return the number of calls of the sandbox that a method of the environment makes."""
        calls: int = (await self._call(sandbox, method, snapshot, records).answer())["calls"]
        return calls

    def _call(
        self,
        sandbox: Sandbox,
        method: str,
        snapshot: StateSnapshot | None,
        records: Path,
        fatal: int | None = None,
    ) -> WorldCaller:
        """Have another process call a method. fatal: number of its call of the sandbox at which it is killed."""
        context = multiprocessing.get_context("forkserver")
        here, there = context.Pipe(duplex=False)
        told = (
            self.provider_path,
            self.environment_path,
            sandbox.ref.model_dump_json(),
            str(_records(records, sandbox)),
            method,
            snapshot and snapshot.model_dump_json(),
            fatal,
        )
        process = context.Process(target=_work, args=(dict(os.environ), there, *told), daemon=True)
        process.start()
        there.close()
        return WorldCaller(process, here)


class WorldCaller(Caller):
    """A process that calls a method of an environment. Its answer has the number of calls of the sandbox."""

    async def died(self) -> bool:
        """Wait for the end of the process. Return whether it was killed; raise `AssertionError` if its call failed."""
        await asyncio.to_thread(self._process.join)
        if self._process.exitcode == -signal.SIGKILL:
            return True
        await self.answer()
        return False


class Mortal:
    """A sandbox that kills the calling process at a given call."""

    def __init__(self, sandbox: Any, fatal: int | None) -> None:
        """Wrap a sandbox. fatal: number of the call that kills, from 1; None for none."""
        self._sandbox = sandbox
        self._fatal = fatal
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        """Return the sandbox's attribute; a coroutine function of it counts its calls, and kills at the fatal one."""
        found = getattr(self._sandbox, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def called(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return await found(*args, **options)

        return called


def context_in(sandbox: Sandbox, records: Path, namespace: str = "") -> WorldContext:
    """Return the context with which an environment is made in a sandbox.

    Args:
        sandbox: The sandbox.
        records: Directory of the environment's records on this host.
        namespace: Prefix of the rollout's records, for sandboxes that several rollouts share.
    """
    return WorldContext(sandbox, TASK, records, {DEFAULT_TASK_KEY: TASK}, namespace)


def _records(root: Path, sandbox: Sandbox) -> Path:
    """Return the directory of a sandbox's environment's records."""
    return root / "records" / sandbox.ref.name


def _work(
    env: dict[str, str],
    answers: Connection,
    provider_path: str,
    environment_path: str,
    ref: str,
    records: str,
    method: str,
    snapshot: str | None,
    fatal: int | None,
) -> None:
    """Call a method of an environment in a process of its own, and send the number of its calls, or its error."""
    os.environ.update(env)

    async def work() -> None:
        provider = make_provider(provider_path)
        sandbox: Any = Mortal(await provider.attach(SandboxRef.model_validate_json(ref)), fatal)
        world = load_environment(environment_path)(context_in(sandbox, Path(records)))
        words: list[Any] = [StateSnapshot.model_validate_json(snapshot)] if snapshot else []
        await getattr(world, method)(*words)
        answers.send({"calls": sandbox.calls})
        await provider.close()

    try:
        asyncio.run(work())
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
