"""The shared stack, and the demo agent as a user's own, for a module or for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import declare

ELSEWHERE = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE")
"""Variables that would lead to another engine than the one under test."""


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user's own agents are declared: `demo`, to which a module may add others."""
    directory = tmp_path_factory.mktemp("agents")
    declare(directory)
    return directory


@pytest.fixture(scope="module")
def module_jobs(shared_state: Path, agents_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use the shared stack in all tests of a module; returns a jobs directory of the module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(shared_state))
        patch.setenv("BENCHFLOW_AGENTS_DIR", str(agents_dir))
        for name in ELSEWHERE:
            patch.delenv(name, raising=False)
        yield tmp_path_factory.mktemp("module") / "jobs"
