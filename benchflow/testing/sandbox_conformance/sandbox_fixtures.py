"""Fixtures of the sandbox suite: a provider, sandboxes that are removed afterwards, and helpers to look into them.

`sandbox` is shared by the tests of a class, for tests that leave no trace which another one would see. If a test broke
it, it is started again under the same name. `start` starts sandboxes of a test's own.
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
from benchflow.contracts.sandbox import Sandbox, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox import adapt_provider
from benchflow.testing.waiting import TIMEOUT_SEC, until

T = TypeVar("T")
Start = Callable[..., Awaitable[Sandbox]]
"""Type of the fixture `start`."""

Keep = Callable[[Sandbox], Awaitable[ImageRef]]
"""Type of the fixture `keep`."""

STACK_LABEL = "benchflow.stack"
"""Label with the id of the stack that a sandbox belongs to."""

PATIENCE = TIMEOUT_SEC
"""Timeout, in seconds, of anything that must happen, also on a busy machine."""


def make_provider(path: str) -> SandboxProvider:
    """Call `module:attribute` without arguments, and return the provider; for a driver, the provider over it."""
    module, _, attribute = path.partition(":")
    return adapt_provider(getattr(importlib.import_module(module), attribute)())


def nap() -> str:
    """Return a random, very long duration for `sleep`, by which the process is recognised in every process table."""
    return f"9{secrets.randbelow(10**9):09d}"


async def napping(sandbox: Sandbox, *naps: str) -> list[str]:
    """Return those durations with which a process in the sandbox runs `sleep`."""
    # By `control`, because many tests are about `exec` itself.
    said = await sandbox.control("ps -eo args")
    assert said.return_code == 0, said.stderr
    lines = said.stdout.splitlines()
    return [text for text in naps if f"sleep {text}" in lines]


async def asleep(sandbox: Sandbox, *naps: str) -> None:
    """Wait until `sleep` runs in the sandbox with all of these durations."""

    async def all_are() -> bool:
        return len(await napping(sandbox, *naps)) == len(naps)

    await until(all_are)


async def awake(sandbox: Sandbox, *naps: str) -> None:
    """Wait until `sleep` runs in the sandbox with none of these durations."""

    async def none_is() -> bool:
        return not await napping(sandbox, *naps)

    await until(none_is)


async def leave(sandbox: Sandbox, length: str, user: str | None = None) -> None:
    """Start `sleep` in the background, detached from its session, parent and environment, and wait until it runs.

    Args:
        sandbox: The sandbox.
        length: Duration of the sleep.
        user: User of the process; None for root.
    """
    await sandbox.exec(["sh", "-c", f"(env -i setsid sleep {length} &) >/dev/null 2>&1"], user=user, cwd="/")
    await asleep(sandbox, length)


def elsewhere(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on an event loop of its own in another thread, and return its result. Blocks."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work()).result()


def left_mounted(provider_path: str, directory: Path) -> list[str]:
    """Sweep until nothing is mounted below a state directory. Return the mounts that are left after a timeout.

    Repeated, because the kernel may release a mount late: it goes with the next sweep.
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


class SandboxFixtures:
    """Fixtures of the suite. Its users set the two attributes."""

    provider_path: ClassVar[str]
    """`module:attribute` of a callable that returns the provider or driver: a path, as other processes use it, too."""

    base_image: ClassVar[str] = "debian:bookworm-slim"
    """Image from which sandboxes start, and which Dockerfiles name in FROM."""

    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """Yield BenchFlow's state directory for the tests of a class."""
        directory = tmp_path_factory.mktemp("state")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
            yield directory

    @pytest.fixture(scope="class")
    @classmethod
    def class_stack(cls, state_directory: Path) -> Iterator[str]:
        """Yield the id of the stack of a class's shared sandbox, which is removed afterwards."""
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
        """Return the configuration of the sandboxes' image. Override it for one that is built."""
        return ImageConfig(image=cls.base_image)

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls, class_stack: str, image_config: ImageConfig) -> ImageRef:
        """Return the image, built or found once a class."""

        async def build() -> ImageRef:
            provider = make_provider(cls.provider_path)
            image = await provider.build(image_config)
            await provider.close()
            return image

        return elsewhere(build)

    @pytest.fixture
    def stack(self) -> str:
        """Return the id of the stack to which the sandboxes of one test belong."""
        return uuid.uuid4().hex

    @pytest.fixture
    def spec(self, stack: str, image: ImageRef) -> SandboxSpec:
        """Return the spec of a sandbox without a network, under a new name."""
        return SandboxSpec(
            name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
            image=image,
            labels={STACK_LABEL: stack},
            network_mode="no-network",
        )

    @pytest_asyncio.fixture
    async def provider(self, state_directory: Path) -> AsyncIterator[SandboxProvider]:
        """Yield the provider."""
        made = make_provider(self.provider_path)
        # Some providers know their capabilities on this host only after a check.
        await made.check()
        yield made
        await made.close()

    @pytest_asyncio.fixture
    async def other(self, state_directory: Path) -> AsyncIterator[SandboxProvider]:
        """Yield a second provider object, as another worker would have it."""
        made = make_provider(self.provider_path)
        yield made
        await made.close()

    @pytest_asyncio.fixture
    async def discard(self, provider: SandboxProvider) -> AsyncIterator[list[ImageRef]]:
        """Yield a list for images to remove after the test, when its sandboxes are gone."""
        images: list[ImageRef] = []
        yield images
        for image in images:
            await provider.remove_image(image)

    @pytest.fixture
    def keep(self, discard: list[ImageRef]) -> Keep:
        """Return a function that takes a snapshot of a sandbox, which is removed after the test."""

        async def take(sandbox: Sandbox) -> ImageRef:
            image = await sandbox.snapshot(f"benchflow-test-{nap()}")
            discard.append(image)
            return image

        return take

    @pytest_asyncio.fixture
    async def start(
        self, provider: SandboxProvider, spec: SandboxSpec, stack: str, discard: list[ImageRef]
    ) -> AsyncIterator[Start]:
        """Yield a function that starts a sandbox of this test's stack; its keyword arguments set `SandboxSpec`."""

        async def begin(**wanted: Any) -> Sandbox:
            fields = {"name": f"benchflow-test-{uuid.uuid4().hex[:12]}"} | wanted
            return await provider.start(spec.model_copy(update=fields), host_id="host", queue="queue")

        yield begin
        await remove_all(provider, stack)

    @pytest.fixture(scope="class")
    @classmethod
    def shared_spec(cls, image: ImageRef, class_stack: str) -> SandboxSpec:
        """Return the spec of the sandbox that the tests of a class share."""
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
        """Start the sandbox that the tests of a class share, and return its ref."""

        async def begin() -> SandboxRef:
            provider = make_provider(cls.provider_path)
            sandbox = await provider.start(shared_spec, host_id="host", queue="queue")
            await provider.close()
            return sandbox.ref

        return elsewhere(begin)

    @pytest_asyncio.fixture
    async def sandbox(self, provider: SandboxProvider, shared_spec: SandboxSpec, shared_ref: SandboxRef) -> Sandbox:
        """Return the sandbox that the tests of a class share."""
        try:
            return await provider.attach(shared_ref)
        except SandboxLostError:
            # A test has broken it.
            return await provider.start(shared_spec, host_id="host", queue="queue")

    @pytest_asyncio.fixture
    async def still(self, sandbox: Sandbox) -> Sandbox:
        """Return the shared sandbox with all its processes killed."""
        await sandbox.kill_processes(keep="nothing")
        return sandbox

    @pytest_asyncio.fixture
    async def own(self, start: Start) -> Sandbox:
        """Return a sandbox of this test alone."""
        return await start()

    @pytest_asyncio.fixture
    async def room(self, sandbox: Sandbox) -> str:
        """Return a new directory in the shared sandbox that every user may write."""
        path = f"/room-{uuid.uuid4().hex[:12]}"
        await sandbox.control('mkdir "$1" && chmod 1777 "$1"', path)
        return path


async def remove_all(provider: SandboxProvider, stack: str) -> None:
    """Remove all sandboxes of a stack, and the resources that they shared."""
    await asyncio.gather(*(provider.remove(owned.name) for owned in await provider.owned(stack)))
    await provider.sweep(stack)
