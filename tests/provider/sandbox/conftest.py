"""A Docker provider, sandboxes that are gone when the test is over, and which tests of a published suite are long."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio
from support.second_daemon import SecondDaemon, containerd_store_daemon

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox

Start = Callable[..., Awaitable[DrivenSandbox]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what a class names in `long`: a suite that is published has no marks that only we know."""
    for item in items:
        cls = getattr(item, "cls", None)
        long = getattr(cls, "long", frozenset())
        missing = [name for name in long if not hasattr(cls, name.partition("[")[0])]
        assert not missing, f"{cls} has no tests {missing}"
        if {item.name, getattr(item, "originalname", None)} & long:
            item.add_marker(pytest.mark.long)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def containerd_store() -> AsyncIterator[SecondDaemon]:
    """A daemon beside the machine's own, with its images in containerd's store."""
    async with containerd_store_daemon() as made:
        yield made


@pytest.fixture(params=["storage driver", pytest.param("containerd", marks=pytest.mark.long)])
def image_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test on the machine's own daemon, and on one that keeps its images in containerd's store."""
    if request.param == "containerd":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("containerd_store").address)


@pytest.fixture
def stack() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def provider(state: Path) -> AsyncIterator[DrivenProvider]:
    made = DrivenProvider(DockerDriver())
    yield made
    await made.close()


@pytest_asyncio.fixture
async def start(provider: DrivenProvider, stack: str, base_image: str) -> AsyncIterator[Start]:
    """Starts sandboxes of this test's stack; keyword arguments are those of `SandboxSpec`."""

    async def begin(**wanted: Any) -> DrivenSandbox:
        fields = {
            "name": f"benchflow-test-{uuid.uuid4().hex[:12]}",
            "image": ImageRef(reference=base_image),
            "labels": {"benchflow.stack": stack},
            "network_mode": "no-network",
        }
        return await provider.start(SandboxSpec(**(fields | wanted)), host_id="host", queue="queue")

    yield begin
    for owned in await provider.owned(stack):
        await provider.remove(owned.name)
    await provider.sweep(stack)


@pytest_asyncio.fixture
async def sandbox(start: Start) -> DrivenSandbox:
    return await start()


@pytest.fixture
def daemon() -> Any:
    """The daemon itself, to look at what really is there."""
    client = docker.from_env()
    yield client
    client.close()
