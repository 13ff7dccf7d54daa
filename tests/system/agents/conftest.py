"""The shared stack, and the demo agent as a user's own, for a module or for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_world import declare


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user's own agents are declared: `demo`, to which a module may add others."""
    directory = tmp_path_factory.mktemp("agents")
    declare(directory)
    return directory


@pytest.fixture(scope="module")
def stack_variables(agents_dir: Path) -> dict[str, str]:
    return {"BENCHFLOW_AGENTS_DIR": str(agents_dir)}
