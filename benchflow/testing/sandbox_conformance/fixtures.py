"""What every theme of the suite stands on: a provider, sandboxes that are gone afterwards, and ways to look inside.

`sandbox` is one that the tests of a class share, for what leaves no trace that another would see; it is found again,
or made anew if a test broke it, by starting it under the same name. `start` makes sandboxes of the test's own.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import pytest_asyncio

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox import provider_of
from benchflow.testing.waiting import TIMEOUT_SEC, until

T = TypeVar("T")
Start = Callable[..., Awaitable[Sandbox]]
Keep = Callable[[Sandbox], Awaitable[ImageRef]]

STACK_LABEL = "benchflow.stack"
PATIENCE = TIMEOUT_SEC
"""Seconds within which what must happen has happened, also on a busy machine."""


def make_provider(path: str) -> SandboxProvider:
    """The provider, or the one over the driver, that `module:attribute` names, called without arguments."""
    module, _, attribute = path.partition(":")
    return provider_of(getattr(importlib.import_module(module), attribute)())


def nap() -> str:
    """A duration for `sleep` that no other process on this machine was given: its mark in every process table."""
    return f"9{secrets.randbelow(10**9):09d}"


async def napping(sandbox: Sandbox, *naps: str) -> list[str]:
    """Which of these naps some process in the sandbox takes."""
    # Past the commands' own way, which many tests have something under.
    said = await sandbox.control("ps -eo args")
    assert said.return_code == 0, said.stderr
    lines = said.stdout.splitlines()
    return [text for text in naps if f"sleep {text}" in lines]


async def asleep(sandbox: Sandbox, *naps: str) -> None:
    """Wait until all of these naps are being taken."""

    async def all_are() -> bool:
        return len(await napping(sandbox, *naps)) == len(naps)

    await until(all_are)


async def awake(sandbox: Sandbox, *naps: str) -> None:
    """Wait until none of these naps is being taken."""

    async def none_is() -> bool:
        return not await napping(sandbox, *naps)

    await until(none_is)


async def leave(sandbox: Sandbox, length: str, user: str | None = None) -> None:
    """Leave a background process that has given up its session, its parent and its environment."""
    await sandbox.exec(["sh", "-c", f"(env -i setsid sleep {length} &) >/dev/null 2>&1"], user=user, cwd="/")
    await asleep(sandbox, length)


def elsewhere(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Carry out a coroutine on an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work()).result()


def left_mounted(provider_path: str, directory: Path) -> list[str]:
    """What is mounted below a state directory and stays so, however often its provider sweeps.

    What the kernel lets go of late goes with the next sweep.
    """

    def mounted() -> list[str]:
        return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line]

    async def sweep() -> None:
        provider = make_provider(provider_path)
        await provider.sweep("")
        await provider.close()

    deadline = time.monotonic() + PATIENCE
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
        while mounted() and time.monotonic() < deadline:
            elsewhere(sweep)
    return mounted()


class Fixtures:
    """The fixtures of the suite. What an author gives are the two attributes."""

    provider_path: ClassVar[str]
    """`module:attribute` of a callable that makes the provider: a path, because other processes make it, too."""

    base_image: ClassVar[str] = "debian:bookworm-slim"
    """The image that sandboxes start from, and that Dockerfiles name in FROM."""

    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """BenchFlow's state directory for the tests of a class."""
        directory = tmp_path_factory.mktemp("state")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
            yield directory

    @pytest.fixture(scope="class")
    @classmethod
    def class_stack(cls, state_directory: Path) -> Iterator[str]:
        """The stack of the sandbox that a class shares."""
        stack = uuid.uuid4().hex
        yield stack

        async def clear() -> None:
            provider = make_provider(cls.provider_path)
            await remove_all(provider, stack)
            await provider.close()

        elsewhere(clear)

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> ImageConfig:
        """What the image of the sandboxes is made from."""
        return ImageConfig(image=cls.base_image)

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls, class_stack: str, image_config: ImageConfig) -> ImageRef:
        """The image, built or found once a class."""

        async def build() -> ImageRef:
            provider = make_provider(cls.provider_path)
            image = await provider.build(image_config)
            await provider.close()
            return image

        return elsewhere(build)

    @pytest.fixture
    def stack(self) -> str:
        """The stack that the sandboxes of one test belong to."""
        return uuid.uuid4().hex

    @pytest.fixture
    def spec(self, stack: str, image: ImageRef) -> SandboxSpec:
        """A sandbox as it can be asked for."""
        return SandboxSpec(
            name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
            image=image,
            labels={STACK_LABEL: stack},
            network_mode="no-network",
        )

    @pytest_asyncio.fixture
    async def provider(self, state_directory: Path) -> AsyncIterator[SandboxProvider]:
        made = make_provider(self.provider_path)
        # Some know only then what they are capable of here.
        await made.check()
        yield made
        await made.close()

    @pytest_asyncio.fixture
    async def other(self, state_directory: Path) -> AsyncIterator[SandboxProvider]:
        """A second provider object, as another worker would hold it."""
        made = make_provider(self.provider_path)
        yield made
        await made.close()

    @pytest_asyncio.fixture
    async def discard(self, provider: SandboxProvider) -> AsyncIterator[list[ImageRef]]:
        """Images to remove when the test is over and its sandboxes are gone."""
        images: list[ImageRef] = []
        yield images
        for image in images:
            await provider.remove_image(image)

    @pytest.fixture
    def keep(self, discard: list[ImageRef]) -> Keep:
        """Takes a snapshot of a sandbox under a new name."""

        async def take(sandbox: Sandbox) -> ImageRef:
            image = await sandbox.snapshot(f"benchflow-test-{nap()}")
            discard.append(image)
            return image

        return take

    @pytest_asyncio.fixture
    async def start(
        self, provider: SandboxProvider, spec: SandboxSpec, stack: str, discard: list[ImageRef]
    ) -> AsyncIterator[Start]:
        """Starts sandboxes of this test's stack; keyword arguments are those of `SandboxSpec`."""

        async def begin(**wanted: Any) -> Sandbox:
            fields = {"name": f"benchflow-test-{uuid.uuid4().hex[:12]}"} | wanted
            return await provider.start(spec.model_copy(update=fields), host_id="host", queue="queue")

        yield begin
        await remove_all(provider, stack)

    @pytest.fixture(scope="class")
    @classmethod
    def shared_spec(cls, image: ImageRef, class_stack: str) -> SandboxSpec:
        """The sandbox that the tests of a class share."""
        return SandboxSpec(
            name=f"benchflow-test-{class_stack[:12]}",
            image=image,
            labels={STACK_LABEL: class_stack},
            network_mode="no-network",
            env={"WORLD": "one two"},
        )

    @pytest.fixture(scope="class")
    @classmethod
    def shared_ref(cls, shared_spec: SandboxSpec) -> SandboxRef:
        """The same, begun."""

        async def begin() -> SandboxRef:
            provider = make_provider(cls.provider_path)
            sandbox = await provider.start(shared_spec, host_id="host", queue="queue")
            await provider.close()
            return sandbox.ref

        return elsewhere(begin)

    @pytest_asyncio.fixture
    async def sandbox(self, provider: SandboxProvider, shared_spec: SandboxSpec, shared_ref: SandboxRef) -> Sandbox:
        """The sandbox that the tests of a class share."""
        try:
            return await provider.attach(shared_ref)
        except SandboxLostError:
            # A test has broken it.
            return await provider.start(shared_spec, host_id="host", queue="queue")

    @pytest_asyncio.fixture
    async def still(self, sandbox: Sandbox) -> Sandbox:
        """The same with nothing running in it."""
        await sandbox.kill_processes(keep="nothing")
        return sandbox

    @pytest_asyncio.fixture
    async def own(self, start: Start) -> Sandbox:
        """A sandbox for this test alone."""
        return await start()

    @pytest_asyncio.fixture
    async def room(self, sandbox: Sandbox) -> str:
        """A directory of this test's own in the shared sandbox, which every user may write."""
        path = f"/room-{uuid.uuid4().hex[:12]}"
        await sandbox.control('mkdir "$1" && chmod 1777 "$1"', path)
        return path


async def remove_all(provider: SandboxProvider, stack: str) -> None:
    """Remove every sandbox of a stack and what they shared."""
    await asyncio.gather(*(provider.remove(owned.name) for owned in await provider.owned(stack)))
    await provider.sweep(stack)
