"""Files that a task's `.harborignore` files exclude from sandboxes, and so from the frozen task.

As in Harbor, these files lie in the directories of verifiers and oracles, and anywhere below them; their rules are
those of `.gitignore`. They do not apply to the build context of an image.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from benchflow.confined import MAX_TEXT, ConfinedDirectory
from benchflow.errors import TaskError, UnsafePathError
from benchflow.tasks.layout import COMPOSE_FILES, ORACLE_DIRS, VERIFIER_DIRS

IGNORE_FILE = ".harborignore"

_Rules = tuple[tuple[str, GitIgnoreSpec], ...]
"""The rules that apply in a directory, outermost first, each with the directory that they are relative to."""


def find_ignored_files(root: Path) -> list[str]:
    """Return the sorted paths, relative to `root`, of a task's ignored files, directories and links into them.

    Raises:
        TaskError: The task can't be read, has an invalid .harborignore, or one that excludes a needed file.
    """
    try:
        with ConfinedDirectory(root) as directory:
            bases = ["", *(f"{step}/" for step in _list_directories(directory, "steps"))]
            scopes = [f"{base}{name}" for base in bases for name in (*VERIFIER_DIRS, *ORACLE_DIRS)]
            found = [name for scope in scopes for name in _find_ignored(directory, scope)]
    except UnsafePathError as error:
        raise TaskError(error.message, file=error.file, remedy="remove it from the directory") from error
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror or error}", file=str(error.filename or root)) from error
    for scope in scopes if found else ():
        _refuse_needed(root, scope, {*found})
    return sorted(found)


def _list_directories(directory: ConfinedDirectory, name: str) -> list[str]:
    """Return the paths of the directories directly in `name`."""
    if not _is_directory(directory, name):
        return []
    below = directory.entries(name, skip=lambda inner: inner.count("/") > 1)
    return [entry.name for entry in below if entry.is_directory]


def _is_directory(directory: ConfinedDirectory, name: str) -> bool:
    return directory.has(name) and stat.S_ISDIR(directory.status(name).st_mode)


def _find_ignored(directory: ConfinedDirectory, scope: str) -> Iterator[str]:
    """Yield the ignored entries below `scope`, a verifier's or oracle's directory. Of an ignored directory, only it."""
    if not _is_directory(directory, scope):
        return
    rules = {scope: _read_rules(directory, scope, ())}
    links, left_out = [], set()
    for entry in directory.entries(scope):
        parent, _, name = entry.name.rpartition("/")
        if parent not in rules:
            continue  # below a directory that is left out
        is_directory = entry.is_directory or (entry.is_link and (directory.path / entry.name).is_dir())
        if name == IGNORE_FILE or _is_ignored(f"{entry.name}/" if is_directory else entry.name, rules[parent]):
            left_out.add(entry.name)
        elif entry.is_directory:
            rules[entry.name] = _read_rules(directory, entry.name, rules[parent])
        elif entry.is_link:
            links.append(entry.name)
    yield from left_out
    yield from (link for link in links if _leads_into(directory.path, link, left_out))


def _read_rules(directory: ConfinedDirectory, name: str, outer: _Rules) -> _Rules:
    """Return the rules that apply in the directory `name`: the outer ones, then those of its own file."""
    file = f"{name}/{IGNORE_FILE}"
    if not directory.has(file):
        return outer
    try:
        spec = GitIgnoreSpec.from_lines(directory.read(file, MAX_TEXT).decode().splitlines())
    except ValueError as error:
        place = str(directory.path / file)
        raise TaskError(f"has no rules as .gitignore has them: {error}", file=place) from error
    return (*outer, (name, spec))


def _is_ignored(name: str, rules: _Rules) -> bool:
    # The last rule that matches decides: an inner file may take back in what an outer one leaves out.
    decided = [spec.check_file(name.removeprefix(f"{base}/")).include for base, spec in rules]
    return next((include for include in reversed(decided) if include is not None), False)


def _leads_into(root: Path, link: str, left_out: set[str]) -> bool:
    """Return whether a link's target is ignored, or lies in an ignored directory."""
    target = os.path.relpath(os.path.realpath(root / link), os.path.realpath(root))
    return any(str(part) in left_out for part in (PurePosixPath(target), *PurePosixPath(target).parents))


def _refuse_needed(root: Path, scope: str, left_out: set[str]) -> None:
    """Raise `TaskError` if test.sh or solve.sh is ignored, or anything in a directory that is a build context."""
    for name in ("test.sh", "solve.sh"):
        if f"{scope}/{name}" in left_out:
            remedy = f"take the rule that matches it out of {IGNORE_FILE}"
            raise TaskError(f"is left out by {IGNORE_FILE}", file=str(root / scope / name), remedy=remedy)
    build = next((name for name in (*COMPOSE_FILES, "Dockerfile") if (root / scope / name).is_file()), None)
    if build is not None and any(name.startswith(f"{scope}/") for name in left_out):
        raise TaskError(
            f"leaves files out of a directory that is also the build context of {build}",
            file=str(root / scope / IGNORE_FILE),
            remedy=f"remove {IGNORE_FILE}, or the {build}; .dockerignore is for images",
        )
