"""A gateway for each test, ended with it; and one that the tests of a module share, where none of them ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.gateway_house import House, end_gateway, house_in

from benchflow.paths import StatePaths


@pytest_asyncio.fixture
async def own_house(tmp_path: Path) -> AsyncIterator[House]:
    async with house_in(tmp_path) as made:
        yield made


@pytest.fixture
def house(own_house: House) -> House:
    return own_house


@pytest.fixture(scope="module")
def module_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatePaths]:
    paths = StatePaths(tmp_path_factory.mktemp("gateway"))
    yield paths
    asyncio.run(end_gateway(paths))


@pytest_asyncio.fixture
async def shared_house(module_state: StatePaths, tmp_path: Path) -> AsyncIterator[House]:
    """The module's gateway, which knows of no rollout but the test's own."""
    async with house_in(tmp_path, module_state) as made:
        yield made
        for status in await made.client.statuses():
            await made.client.forget(status.id)
