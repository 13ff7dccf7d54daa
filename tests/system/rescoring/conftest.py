"""A jobs directory for each test, on the stack that this run shares."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def jobs(module_jobs: Path, tmp_path: Path) -> Path:
    """Return a jobs directory."""
    return tmp_path / "jobs"
