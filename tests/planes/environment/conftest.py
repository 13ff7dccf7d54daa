"""A Node that sandboxes can mount, and rooms to keep state in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from state_room import Room, attached, room_in

from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox, ensure_runtime


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    """Node, fetched once a session."""
    return asyncio.run(ensure_runtime(StatePaths(tmp_path_factory.mktemp("runtime"))))


@pytest_asyncio.fixture
async def room(request: pytest.FixtureRequest, runtime: Toolbox, base_image: str, state: Path) -> AsyncIterator[Room]:
    """A sandbox of the kind, and with the helper, that the test's parameter names."""
    where, kind = request.param
    async with room_in(where, kind, runtime, base_image) as made:
        yield made


@pytest_asyncio.fixture
async def other(room: Room) -> AsyncIterator[Room]:
    """The same sandbox, as another process would reach it."""
    async with attached(room) as made:
        yield made
