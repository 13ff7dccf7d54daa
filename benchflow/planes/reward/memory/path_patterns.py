"""Paths and globs by which a task names files or directories, and their absolute form in a sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

_KERNELS = ("/proc", "/sys", "/dev")
"""Directories whose files the kernel makes as they are read."""

_WILD = re.compile(r"[*?\[]")


def _check_place(path: str) -> str:
    """Return a path as it is.

    Raises:
        ValueError: It contains a NUL or `..`, or lies in a directory of the kernel, or matches may lie anywhere in `/`.
    """
    if "\0" in path:
        raise ValueError("must be a path")
    if ".." in path.split("/"):
        raise ValueError("must not contain `..`: name the directory as it is")
    if path.startswith("/"):
        fixed = posixpath.normpath(get_fixed_part(path)).replace("//", "/")
        if fixed == "/" or is_below(fixed, _KERNELS):
            raise ValueError("is too wide: name the directories that hold skills or memory")
    return path


Place = Annotated[str, StringConstraints(min_length=1), AfterValidator(_check_place)]
"""Type of a path or glob in a task: absolute, below the agent's home (`~/…`), or relative to the workspace."""


def make_absolute(place: str, *, home: str, workspace: str) -> str:
    """Return the absolute path of a place.

    Args:
        place: Path, in which `~/` or `{home}` is the home, and `{workspace}` the workspace.
        home: Absolute path of the agent's home.
        workspace: Absolute path to which relative places refer.
    """
    place = place.replace("{home}", home).replace("{workspace}", workspace)
    if place == "~" or place.startswith("~/"):
        place = home + place[1:]
    # POSIX keeps exactly two leading slashes, and so does normpath.
    return posixpath.normpath(posixpath.join(workspace, place)).replace("//", "/")


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Return whether a path is one of the directories, or lies in one."""
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def find_outermost(directories: Sequence[str]) -> tuple[str, ...]:
    """Return the directories that lie in no other one of them, in their order."""
    distinct = list(dict.fromkeys(directories))
    return tuple(one for one in distinct if not is_below(one, [other for other in distinct if other != one]))


def matches(path: str, glob: str) -> bool:
    """Return whether an absolute path matches a glob: `*`, `?`, `[…]` within a name, `**` for any number of names.

    Runs in time proportional to the product of their lengths, so that neither can keep a worker busy.
    """
    names, parts = path.split("/"), glob.split("/")
    at = part = tried = 0
    star = None
    while at < len(names):
        if part < len(parts) and parts[part] == "**":
            star, tried = part, at
            part += 1
        elif part < len(parts) and fnmatchcase(names[at], parts[part]):
            at, part = at + 1, part + 1
        elif star is not None:
            part, tried = star + 1, tried + 1
            at = tried
        else:
            return False
    return all(rest == "**" for rest in parts[part:])


def get_fixed_part(glob: str) -> str:
    """Return the deepest directory that contains all matches of a glob; a path without wildcards as it is."""
    wild = _WILD.search(glob)
    return glob if wild is None else glob[: wild.start()].rpartition("/")[0] or ("/" if glob[0] == "/" else ".")


def has_wildcards(text: str) -> bool:
    """Return whether a text has wildcards."""
    return _WILD.search(text) is not None
