"""A Docker provider, sandboxes that are gone when the test is over, and which tests of a published suite are long."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.sandbox.docker import DockerProvider
from benchflow.planes.sandbox.docker.sandbox import DockerSandbox

Start = Callable[..., Awaitable[DockerSandbox]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what a class names in `long`: a suite that is published has no marks that only we know."""
    for item in items:
        cls = getattr(item, "cls", None)
        long = getattr(cls, "long", frozenset())
        missing = [name for name in long if not hasattr(cls, name.partition("[")[0])]
        assert not missing, f"{cls} has no tests {missing}"
        if {item.name, getattr(item, "originalname", None)} & long:
            item.add_marker(pytest.mark.long)


@pytest.fixture
def stack() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def provider(state: Path) -> AsyncIterator[DockerProvider]:
    made = DockerProvider()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def start(provider: DockerProvider, stack: str, base_image: str) -> AsyncIterator[Start]:
    """Starts sandboxes of this test's stack; keyword arguments are those of `SandboxSpec`."""

    async def begin(**wanted: Any) -> DockerSandbox:
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
async def sandbox(start: Start) -> DockerSandbox:
    return await start()


@pytest.fixture
def daemon() -> Any:
    """The daemon itself, to look at what really is there."""
    client = docker.from_env()
    yield client
    client.close()
