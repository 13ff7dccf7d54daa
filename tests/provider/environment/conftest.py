"""Rooms to keep state in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from support.state_room import Room, attached, room_in

from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import ensure_python


@pytest_asyncio.fixture
async def room(
    request: pytest.FixtureRequest, base_image: str, kept: StatePaths, use_state: Callable[[str], None]
) -> AsyncIterator[Room]:
    """A sandbox of the provider, with the helper run by the Python, that the test's parameter names."""
    where, _, whose = request.param.partition("-")
    use_state(where)
    mounted = await ensure_python(kept) if whose == "mounted" else None
    async with room_in(where, base_image, mounted) as made:
        yield made


@pytest_asyncio.fixture
async def other(room: Room) -> AsyncIterator[Room]:
    """The same sandbox, as another process would reach it."""
    async with attached(room) as made:
        yield made
