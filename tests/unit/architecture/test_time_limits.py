"""Limits of time do not count that in which their process was frozen: `planes.sandbox.timeouts` sets them, no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support.paths import ROOT

PACKAGE = ROOT / "benchflow"

_PLAIN = {"timeout", "timeout_at", "wait_for"}

ALLOWED: dict[str, str] = {
    "planes/sandbox/timeouts.py": "what the others are made from",
    "planes/sandbox/docker/engine.py::_watch": "how long to wait between two looks",
    "planes/sandbox/local/executions.py::_readable": "how long to wait between two looks",
}
"""Functions that may use asyncio's own, each with the reason why a freeze does no harm."""


def plain_limits(name: str, source: str) -> Iterator[str]:
    """Yield where a module uses a limit that counts all time."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        elif isinstance(node, ast.Attribute) and node.attr in _PLAIN and ast.unparse(node.value) == "asyncio":
            yield f"{name}::{function}"
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (f"{name}::{function}" for alias in node.names if alias.name in _PLAIN)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(source), "")


def test_a_freeze_ends_nothing_in_planes_and_activities() -> None:
    modules = [path for room in ("planes", "activities") for path in sorted((PACKAGE / room).rglob("*.py"))]
    found = {
        place
        for path in modules
        for place in plain_limits(path.relative_to(PACKAGE).as_posix(), path.read_text())
        if place.partition("::")[0] not in ALLOWED
    }
    assert sorted(found - ALLOWED.keys()) == []
    stale = {place for place in ALLOWED if "::" in place} - found
    assert sorted(stale) == []


@pytest.mark.parametrize(
    "line", ["async with asyncio.timeout(3): pass", "await asyncio.wait_for(x, 3)", "from asyncio import timeout"]
)
def test_plain_limits_are_found(line: str) -> None:
    source = f"async def work():\n    {line}\n"
    assert [*plain_limits("module.py", source)] == ["module.py::work"]
