"""No file imports another that imports it back, at any distance: neither when it is loaded nor later, nor for types."""

from __future__ import annotations

import ast
from collections.abc import Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

FACADES = {"benchflow"}
"""Packages that only offer names of other files, and define none that these need but `__version__`."""


def test_no_files_import_each_other() -> None:
    files = {_module(file): file for file in sorted((ROOT / "benchflow").rglob("*.py"))}
    imported = {module: _imported(file, files.keys()) - {module} for module, file in files.items()}
    try:
        TopologicalSorter({module: names - FACADES for module, names in imported.items()}).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, known: Set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (named & known) or ({node.module} & known)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found
