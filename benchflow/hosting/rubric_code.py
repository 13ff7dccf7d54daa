"""Import the rubric that a user names as `module:object`, as it is now."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

from benchflow.contracts.reward import RolloutNode, VerifyResult
from benchflow.errors import ConfigError

_OPTION = "--rubric"

_DIRECTORIES: set[Path] = set()
"""Directories in which this process has looked for rubrics."""


@runtime_checkable
class Scorer(Protocol):
    """A rubric in Python, such as `benchflow.Rubric`."""

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Score a node."""
        ...


def load_scorer(name: str, root: str) -> Scorer:
    """Import a rubric.

    Args:
        name: `module:object`.
        root: Directory in which the module is looked for after the installed ones. The module, and what lies there, is
            imported anew: it may have changed since this process imported it. So is what rubrics of other directories
            have imported from there, which may have the same names.

    Raises:
        ConfigError: It can't be imported, or is no rubric.
    """
    module, _, attribute = name.partition(":")
    top, directory = module.partition(".")[0], Path(root).resolve()
    _DIRECTORIES.add(directory)
    installed = {Path(path).resolve() for path in sys.path}
    for loaded, content in list(sys.modules.items()):
        origin = _import_directory(loaded, content)
        is_named = origin == directory and loaded.partition(".")[0] == top
        if (is_named or origin in _DIRECTORIES - installed) and loaded.partition(".")[0] != "benchflow":
            del sys.modules[loaded]
    importlib.invalidate_caches()
    # Last, so that a file of this directory takes the place of no installed module, and not for longer than this
    # import: what tasks name is not looked for there.
    sys.path.append(root)
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name} cannot be imported: {type(error).__name__}: {error}",
            key=_OPTION,
            remedy="write package.module:object, of a module that is installed or lies in this directory",
        ) from error
    finally:
        sys.path.remove(root)
    if isinstance(found, type) or not isinstance(found, Scorer):
        raise ConfigError(
            f"{name} is no rubric: it has no `score`",
            key=_OPTION,
            remedy="name an object, as in: quality = benchflow.Rubric(…)",
        )
    return found


def _import_directory(name: str, module: ModuleType) -> Path | None:
    """Return the directory of the import path in which a module was found; None for one without a file."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file).absolute()
    depth = len(name.split(".")) - (path.name != "__init__.py")
    return path.parents[depth].resolve() if depth < len(path.parents) else None
