"""A name means one thing: no file name occurs in two directories, no public class name in two modules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "benchflow"
OF_PYTHON = {"__init__.py", "__main__.py"}


def _repeated(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the places of each name that has several."""
    places: dict[str, set[str]] = defaultdict(set)
    for name, place in pairs:
        places[name].add(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_file_name_is_understood_without_its_directory() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name not in OF_PYTHON]
    assert _repeated((path.name, str(path.parent.relative_to(ROOT))) for path in files) == {}


def test_a_public_class_name_occurs_in_one_module() -> None:
    modules = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    classes = [
        (node.name, module)
        for module, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert _repeated(classes) == {}


def test_the_awaits_that_tests_name_are_in_workflows() -> None:
    functions = {
        (path.stem, node.name)
        for path in (PACKAGE / "workflows").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    files = [*(ROOT / "tests" / "engine").glob("test_raising_*.py"), *(ROOT / "tests" / "support").glob("raising*.py")]
    named = {found for path in files for found in re.findall(r'"(\w+):(\w+):\d+"', path.read_text())}
    assert named
    assert named - functions == set()


def test_repeated_names_are_found() -> None:
    assert _repeated([("a.py", "x"), ("a.py", "y"), ("b.py", "x")]) == {"a.py": {"x", "y"}}
