"""What each Python of a verifier does as it starts: modules of the standard library come from there.

A module beside a script, or in the directory where Python starts, would else be taken in place of one of the standard
library's, for whoever imports it. This file is copied into sandboxes, as the `sitecustomize` of a directory on
PYTHONPATH, and runs under their Python; it imports nothing of the engine.
"""

# Strings, because every program of Python's would wait for `pathlib`.
# ruff: noqa: PTH118, PTH120, PTH208

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

OWN: list[str] = []
"""Modules of such a name that the project had before the agent, or that the task names; set at the end of the copy."""

_LIBRARY = os.path.dirname(os.__file__)
_STANDARD = [path for path in sys.path if path == _LIBRARY or path.startswith(os.path.join(_LIBRARY, "lib-dynload"))]
_NOT_TAKEN = ("test", "this", "antigravity", "sitecustomize", "usercustomize", "__main__")


def _names() -> frozenset[str]:
    known = getattr(sys, "stdlib_module_names", None)
    # Python before 3.10 has no list.
    found = known or {name.partition(".")[0] for path in _STANDARD for name in os.listdir(path)}
    return frozenset(found) - {*_NOT_TAKEN, *OWN}


class StandardFirst:
    """Finds top-level modules of the standard library before what lies beside a script."""

    def __init__(self) -> None:
        self._taken = _names()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where the standard library has a module; None for all others.

        Raises `ModuleNotFoundError` for the module of Jython that `copy` and `pickle` ask for.
        """
        if name == "org" and _importer() in ("copy", "pickle"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return PathFinder.find_spec(name, _STANDARD) if path is None and name in self._taken else None

    def leave_out_absent(self) -> None:
        """Have modules of the standard library that this Python does not have, as those of Windows, be none.

        The library asks for them to learn where it is.
        """
        there = {name.partition(".")[0] for path in _STANDARD for name in os.listdir(path)}
        for name in self._taken - there - set(sys.builtin_module_names):
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _importer() -> str:
    """Return the name of the module of the standard library that imports; empty for any other one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib._bootstrap"):
        frame = frame.f_back
    known = frame is not None and os.path.dirname(frame.f_code.co_filename) == _LIBRARY
    return str(frame.f_globals.get("__name__")) if frame is not None and known else ""


def start() -> None:
    """Take part in imports, then do what the image's own `sitecustomize` does."""
    at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    finder = StandardFirst()
    sys.meta_path.insert(at, finder)
    if hasattr(sys, "stdlib_module_names"):
        finder.leave_out_absent()
    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
