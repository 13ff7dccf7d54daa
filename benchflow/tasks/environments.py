"""Find the environment manifest of a task. Its content is read elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow.contracts.task import Task
from benchflow.errors import ManifestError

PACKAGE_MANIFEST = "environment.toml"
MANIFEST_KEY = "benchflow.environment.manifest"
"""Key of a task by which it names its manifest."""


def find_manifest(path: Path, task: Task, option: Path | None = None) -> Path | None:
    """Return the path of a task's environment manifest; None for a task without an environment of its own.

    Args:
        path: The task's directory.
        task: The task.
        option: Manifest that the user gives; goes before the one that the task names, and that before its package's.

    Raises:
        ManifestError: The task names a missing file, or one outside of its task set, or its package's is a link that
            leads out. Errors in a manifest are shown with its text, which would disclose other files of the user.
    """
    if option is not None:
        return option
    named = find_named_manifest(task.extension)
    if named is None:
        file = find_package_manifest(path)
        if file is not None and not file.resolve().is_relative_to(file.parent.resolve()):
            raise ManifestError(
                "is a link that leads out of the package",
                file=str(file),
                remedy="copy what it points to into the package",
            )
        return file
    file = Path(os.path.normpath(path.absolute() / named))
    try:
        found = file.is_file()
    except (OSError, ValueError):
        found = False
    if not found:
        raise ManifestError(
            f"there is no manifest {named!r}",
            file=str(path / task.config_file),
            key=MANIFEST_KEY,
            remedy="give an existing file, relative to the task's own directory",
        )
    if Path(named).is_absolute() or not file.resolve().is_relative_to(_find_task_set(path.resolve())):
        raise ManifestError(
            f"{named!r} is a file that the task may not choose: it is not of its task set",
            file=str(path / task.config_file),
            key=MANIFEST_KEY,
            remedy=f"if you want it, say so yourself: --environment-manifest {file}",
        )
    return file


def _find_task_set(task: Path) -> Path:
    """Return the directory of a task's package or siblings; the task's own if that would hold the user's home."""
    beside = task.parent.parent if task.parent.name == "tasks" else task.parent
    home = Path.home()
    return task if any(one.is_relative_to(beside) for one in (home, home.resolve())) else beside


def find_named_manifest(extension: Mapping[str, Any]) -> str | None:
    """Return the manifest that a task's `benchflow` table names, relative to the task's directory; None without one."""
    environment = extension.get("environment")
    named = environment.get("manifest") if isinstance(environment, dict) else None
    return named if isinstance(named, str) else None


def find_package_manifest(path: Path) -> Path | None:
    """Return the `environment.toml` of a task's package; None if the task lies in no `tasks/` beside such a file."""
    tasks = Path(os.path.normpath(path.absolute())).parent
    file = tasks.parent / PACKAGE_MANIFEST
    return file if tasks.name == "tasks" and file.is_file() else None
