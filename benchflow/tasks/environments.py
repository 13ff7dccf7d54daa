"""Which environment manifest a task has. What such a file says is read elsewhere; here it is only found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow.contracts.task import Task
from benchflow.errors import ManifestError

PACKAGE_MANIFEST = "environment.toml"
NAMED = "benchflow.environment.manifest"


def manifest_of(path: Path, task: Task, option: Path | None = None) -> Path | None:
    """The manifest of the task in `path`: the one given as an option, else the one that the task names, else its
    package's. None for a task without a world of its own.

    Raises `ManifestError` where the task names a file that is not there.
    """
    if option is not None:
        return option
    named = named_in(task.extension)
    if named is None:
        return package_manifest(path)
    file = Path(os.path.normpath(path.absolute() / named))
    try:
        found = file.is_file()
    except (OSError, ValueError):
        found = False
    if not found:
        raise ManifestError(
            f"there is no manifest {named!r}",
            file=str(path / task.config_file),
            key=NAMED,
            remedy="give an existing file, relative to the task's own directory",
        )
    return file


def named_in(extension: Mapping[str, Any]) -> str | None:
    """The manifest that a task's `benchflow` table names, relative to the task's directory."""
    environment = extension.get("environment")
    named = environment.get("manifest") if isinstance(environment, dict) else None
    return named if isinstance(named, str) else None


def package_manifest(path: Path) -> Path | None:
    """The `environment.toml` beside the `tasks/` that the task in `path` lies in."""
    tasks = Path(os.path.normpath(path.absolute())).parent
    file = tasks.parent / PACKAGE_MANIFEST
    return file if tasks.name == "tasks" and file.is_file() else None
