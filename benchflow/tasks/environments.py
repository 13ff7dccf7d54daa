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

    Raises `ManifestError` where the task names a file that is not there, and for one that is not of its task set: what
    is wrong with a file is shown, and so would be files of the user's.
    """
    if option is not None:
        return option
    named = named_in(task.extension)
    if named is None:
        file = package_manifest(path)
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
            key=NAMED,
            remedy="give an existing file, relative to the task's own directory",
        )
    if Path(named).is_absolute() or not file.resolve().is_relative_to(_task_set(path.resolve())):
        raise ManifestError(
            f"{named!r} is a file that the task may not choose: it is not of its task set",
            file=str(path / task.config_file),
            key=NAMED,
            remedy=f"if you want it, say so yourself: --environment-manifest {file}",
        )
    return file


def _task_set(task: Path) -> Path:
    """Return the directory that holds a task and those beside it; the task's own where that would be a home's."""
    beside = task.parent.parent if task.parent.name == "tasks" else task.parent
    home = Path.home()
    return task if any(one.is_relative_to(beside) for one in (home, home.resolve())) else beside


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
