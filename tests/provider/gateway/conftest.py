"""A gateway that the tests of a process share: each has its own rollouts, and may end it; and one for a test alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from support.gateway_fixture import GatewayFixture, gateway_in

from benchflow.gateway.gateway_process import is_running
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatePaths]:
    paths = StatePaths(tmp_path_factory.mktemp("gateway"))
    yield paths
    # After the last test of the process, which may be one of the unit lane: the gateway is not asked who it is.
    for process in psutil.process_iter(["cmdline"]):
        if str(paths.root) in (process.info["cmdline"] or ()):
            process.kill()
    asyncio.run(until(lambda: not is_running(paths)))


@pytest_asyncio.fixture
async def gateway(shared_gateway: StatePaths, tmp_path: Path) -> AsyncIterator[GatewayFixture]:
    """The shared gateway, which knows of no rollout but the test's own."""
    async with gateway_in(tmp_path, shared_gateway) as made:
        yield made


@pytest_asyncio.fixture
async def own_gateway(tmp_path: Path) -> AsyncIterator[GatewayFixture]:
    async with gateway_in(tmp_path) as made:
        yield made
