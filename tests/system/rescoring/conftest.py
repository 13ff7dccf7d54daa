"""A state directory that the tests of a module share: its sandboxes have one store; a jobs directory for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchflow.planes.sandbox import close_providers
from benchflow.rescoring.sandboxes import OWNER


@pytest.fixture(scope="module")
def module_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
        for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
            patch.delenv(name, raising=False)
        yield directory


@pytest_asyncio.fixture
async def jobs(module_state: Path, tmp_path: Path) -> AsyncIterator[Path]:
    """A jobs directory; providers are let go of afterwards."""
    # Of a test before these, one may be left, and that one looks into another state directory.
    await close_providers(OWNER)
    yield tmp_path / "jobs"
    await close_providers(OWNER)
