"""The shared stack for a whole module, with the package's own agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack_package import AGENTS


@pytest.fixture(scope="module")
def module_jobs(shared_state: Path, packages_layer: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use the shared stack in all tests of a module; returns a jobs directory of the module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(shared_state))
        patch.setenv("BENCHFLOW_AGENTS_DIR", str(AGENTS))
        for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
            patch.delenv(name, raising=False)
        yield tmp_path_factory.mktemp("module") / "jobs"
