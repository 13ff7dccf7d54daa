"""Find the tasks at a path: one task, a directory of them, or a package (`tasks/` beside `environment.toml`)."""

from __future__ import annotations

from pathlib import Path

from benchflow.errors import TaskError
from benchflow.tasks.layout import DEFINITIONS


def find_tasks(path: Path) -> list[Path]:
    """Return the task directories at `path`, sorted: `path` itself, those in it, or those in its `tasks/`.

    Raises:
        TaskError: There is none.
    """
    if not path.exists():
        raise TaskError("does not exist", file=str(path), remedy="give an existing task directory")
    if not path.is_dir():
        raise TaskError(
            "is a file, not a task directory", file=str(path), remedy="give the directory that the file is in"
        )
    if _is_task(path):
        return [path]
    for directory in (path, path / "tasks"):
        tasks = sorted(child for child in _list_children(directory) if _is_task(child))
        if tasks:
            return tasks
    empty = not any(path.iterdir())
    raise TaskError(
        "is empty" if empty else "holds no task",
        file=str(path),
        remedy="a task is a directory with a task.md (or task.toml and instruction.md) and an environment/; "
        "`bench tasks init` makes one",
    )


def _list_children(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [child for child in directory.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _is_task(path: Path) -> bool:
    """Return whether a directory is a task. An incomplete one counts, so that it is reported instead of left out."""
    if any((path / name).is_file() for name in DEFINITIONS):
        return True
    return (path / "instruction.md").is_file() and (path / "environment").is_dir()
