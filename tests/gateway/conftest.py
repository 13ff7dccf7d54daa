"""A gateway for each test, ended with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from gateway_house import House, house_in


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with house_in(tmp_path) as made:
        yield made
