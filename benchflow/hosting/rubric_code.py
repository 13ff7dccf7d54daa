"""Import the rubric that a user names as `module:object`, as it is now."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow.contracts.reward import RolloutNode, VerifyResult
from benchflow.errors import ConfigError

_OPTION = "--rubric"


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
            imported anew: it may have changed since this process imported it.

    Raises:
        ConfigError: It can't be imported, or is no rubric.
    """
    module, _, attribute = name.partition(":")
    top, below = module.partition(".")[0], Path(root).resolve()
    is_installed = any(Path(path).resolve() == below for path in sys.path)
    for loaded, content in list(sys.modules.items()):
        file = getattr(content, "__file__", None)
        is_named = loaded == top or loaded.startswith(f"{top}.")
        if (
            file
            and top != "benchflow"
            and (is_named or not is_installed)
            and Path(file).resolve().is_relative_to(below)
        ):
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
