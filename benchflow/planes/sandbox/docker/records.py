"""Where a container's records lie: keyed by its id, gone when it is removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchflow.paths import state_dir


def container_records(container: str) -> Path:
    """The directory of one container's records."""
    return state_dir() / "exec" / container


def forget(container: str) -> None:
    shutil.rmtree(container_records(container), ignore_errors=True)
