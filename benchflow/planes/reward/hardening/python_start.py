"""Startup code of each Python of a verifier: it imports modules of the standard library from there.

Otherwise a module beside a script, or in the directory in which Python starts, would be imported in place of one of the
standard library. This file is copied into sandboxes, as the `sitecustomize` of a directory on PYTHONPATH, and runs
under their Python; it imports nothing of the engine.
"""

# Paths are strings, because an import of `pathlib` would delay the start of each Python program.
# ruff: noqa: PTH118, PTH120, PTH208

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

OWN: list[str] = []
"""Names of modules of the project before the agent acted, or of the task, that may shadow the standard library; set at
the end of the copy.
"""

_LIBRARY = os.path.dirname(os.__file__)
_STANDARD = [path for path in sys.path if path == _LIBRARY or path.startswith(os.path.join(_LIBRARY, "lib-dynload"))]
_NOT_TAKEN = ("test", "this", "antigravity", "sitecustomize", "usercustomize", "__main__")


def _list_protected_names() -> frozenset[str]:
    """Return the names of the standard library's modules that must not be shadowed."""
    known = getattr(sys, "stdlib_module_names", None)
    # Python before 3.10 has no `sys.stdlib_module_names`.
    found = known or {name.partition(".")[0] for path in _STANDARD for name in os.listdir(path)}
    return frozenset(found) - {*_NOT_TAKEN, *OWN}


class StandardFirst:
    """Import finder for top-level modules of the standard library, to be put before the one for `sys.path`."""

    def __init__(self) -> None:
        """Make it for all modules of the standard library, except those in `OWN`."""
        self._taken = _list_protected_names()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module of the standard library; None for any other module.

        Raises:
            ModuleNotFoundError: The module is Jython's `org`, which `copy` and `pickle` try to import.
        """
        if name == "org" and _find_importer() in ("copy", "pickle"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return PathFinder.find_spec(name, _STANDARD) if path is None and name in self._taken else None

    def leave_out_absent(self) -> None:
        """Make the import of standard modules that this Python lacks, such as those of Windows, fail at once.

        The standard library tries to import them to learn where it runs; a file of that name in the workspace would
        answer.
        """
        there = {name.partition(".")[0] for path in _STANDARD for name in os.listdir(path)}
        for name in self._taken - there - set(sys.builtin_module_names):
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _find_importer() -> str:
    """Return the name of the standard library's module that makes the current import; empty for any other importer."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib._bootstrap"):
        frame = frame.f_back
    known = frame is not None and os.path.dirname(frame.f_code.co_filename) == _LIBRARY
    return str(frame.f_globals.get("__name__")) if frame is not None and known else ""


def start() -> None:
    """Install the finder, then run the image's own `sitecustomize`."""
    at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    finder = StandardFirst()
    sys.meta_path.insert(at, finder)
    if hasattr(sys, "stdlib_module_names"):
        finder.leave_out_absent()
    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
