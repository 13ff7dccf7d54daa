"""Names of places: what a task calls a directory or a file, and the absolute path that this is in a sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

_WILD = re.compile(r"[*?\[]")


def _narrow(path: str) -> str:
    if "\0" in path:
        raise ValueError("must be a path")
    if posixpath.normpath(path).strip("/") in ("", ".."):
        raise ValueError("is too wide: name the directories that hold skills or memory")
    return path


Place = Annotated[str, StringConstraints(min_length=1), AfterValidator(_narrow)]
"""A path or a glob as a task says it: absolute, below the agent's home (`~/…`), or relative."""


def absolute(place: str, *, home: str, workspace: str) -> str:
    """The path of a place. Home: `~` or `{home}`. What is relative lies in the workspace."""
    place = place.replace("{home}", home).replace("{workspace}", workspace)
    if place == "~" or place.startswith("~/"):
        place = home + place[1:]
    # Two leading slashes would be kept.
    return posixpath.normpath(posixpath.join(workspace, place)).replace("//", "/")


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Whether a path is one of the directories, or lies in one."""
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def outermost(directories: Sequence[str]) -> tuple[str, ...]:
    """The same places without those that lie in another, in their order."""
    distinct = list(dict.fromkeys(directories))
    return tuple(one for one in distinct if not is_below(one, [other for other in distinct if other != one]))


def matches(path: str, glob: str) -> bool:
    """Whether an absolute path fits an absolute glob: `*`, `?` and `[…]` stay within a name, `**` is any number.

    Takes no more time than the product of their lengths, whoever wrote either.
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


def fixed_part(glob: str) -> str:
    """The place that holds all that a glob may stand for; the glob itself when it is one place."""
    wild = _WILD.search(glob)
    return glob if wild is None else glob[: wild.start()].rpartition("/")[0] or ("/" if glob[0] == "/" else ".")


def is_wild(text: str) -> bool:
    return _WILD.search(text) is not None
