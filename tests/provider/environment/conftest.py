"""Rooms to keep state in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from support.state_room import Room, attached, room_in

from benchflow.planes.agent.toolbox import Toolbox


@pytest_asyncio.fixture
async def room(
    request: pytest.FixtureRequest, runtime: Toolbox, base_image: str, use_state: Callable[[str], None]
) -> AsyncIterator[Room]:
    """A sandbox of the kind, and with the helper, that the test's parameter names."""
    where, kind = request.param
    use_state(where)
    async with room_in(where, kind, runtime, base_image) as made:
        yield made


@pytest_asyncio.fixture
async def other(room: Room) -> AsyncIterator[Room]:
    """The same sandbox, as another process would reach it."""
    async with attached(room) as made:
        yield made
