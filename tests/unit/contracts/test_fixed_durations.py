"""Durations of workflows and activities: in the options or in `fixed_durations`, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

FILES = [*(ROOT / "benchflow/workflows").glob("*.py"), *(ROOT / "benchflow/activities").glob("*.py")]


def durations(tree: ast.AST) -> Iterator[str]:
    """Yield the code that gives a duration as a number: a constant, a timeout, a sleep or a `timedelta`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(("_SEC", "_TIMEOUT")):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            keywords = [one.value for one in node.keywords if (one.arg or "").endswith(("timeout", "_sec", "delay"))]
            given = [*node.args, *(one.value for one in node.keywords)] if name in ("sleep", "timedelta") else keywords
            if any(isinstance(one, ast.Constant) and one.value for one in given):
                yield ast.unparse(node)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_module_has_a_duration_of_its_own(file: Path) -> None:
    found = [code for code in durations(ast.parse(file.read_text())) if code != "timedelta(days=365)"]
    assert found == [], "write it in contracts/fixed_durations.py, or as an option"


@pytest.mark.parametrize("code", ["WAIT_SEC = 3.0", "sleep(0.1)", "run(timeout=5)", "timedelta(seconds=1)"])
def test_a_duration_is_found(code: str) -> None:
    assert list(durations(ast.parse(code))) == [code]
