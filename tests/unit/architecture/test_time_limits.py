"""Limits count neither a freeze of their process nor a step of the clock: `planes.sandbox.timeouts` sets them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest
from support.paths import ROOT

PACKAGE = ROOT / "benchflow"

_PLAIN = {"timeout", "timeout_at", "wait_for"}

ALLOWED: dict[str, str] = {
    "planes/sandbox/timeouts.py": "what the others are made from",
    "planes/sandbox/docker/docker_daemon.py::_watch": "how long to wait between two looks",
    "planes/sandbox/driven/processes_outside.py::end_of": "how long to wait between two looks",
}
"""Functions that may use asyncio's own, each with the reason why a freeze does no harm."""


WALL_CLOCK: dict[str, str] = {
    "planes/environment/world_context.py::save_snapshot": "only notes the time",
    "planes/sandbox/docker/restores.py::tidy": "the age of what is left: who lives holds a lock",
    "hosting/provisioning.py::make_sandbox_labels": "for a later process's reaper, which watches what looks too old",
    "activities/reaper.py::_is_abandoned": "beside a clock that nobody sets",
    "activities/reaper.py::_is_orphan": "beside a clock that nobody sets",
    "activities/job_activities.py::host_status": "beside the time of the poll itself, which decides",
    "activities/job_secrets.py::_is_over": "the age of files",
    "activities/leftovers.py::remove": "the age of files",
    "activities/leftovers.py::find_oldest_start": "the age of files",
}
"""Functions that may read the clock that may be set, each with the reason why that does no harm."""


def functions_with(source: str, is_it: Callable[[ast.AST], bool]) -> Iterator[str]:
    """Yield the functions of a module in which a node is found, once for each such node."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if is_it(node):
            yield function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(source), "")


def is_plain_limit(node: ast.AST) -> bool:
    """Tell whether a node is a limit that counts all time."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "asyncio" and any(alias.name in _PLAIN for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in _PLAIN and ast.unparse(node.value) == "asyncio"


def reads_wall_clock(node: ast.AST) -> bool:
    """Tell whether a node reads the clock that may be set."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "time" and any(alias.name == "time" for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "time.time"


def found_in_planes_and_activities(is_it: Callable[[ast.AST], bool]) -> set[str]:
    modules = [path for room in ("planes", "hosting", "activities") for path in sorted((PACKAGE / room).rglob("*.py"))]
    return {
        f"{path.relative_to(PACKAGE).as_posix()}::{function}"
        for path in modules
        # What runs in the sandbox of a world only notes the time.
        if "planes/environment/helper" not in path.as_posix()
        for function in functions_with(path.read_text(), is_it)
    }


def test_a_freeze_ends_nothing_in_planes_and_activities() -> None:
    found = {
        place for place in found_in_planes_and_activities(is_plain_limit) if place.partition("::")[0] not in ALLOWED
    }
    assert sorted(found - ALLOWED.keys()) == []
    stale = {place for place in ALLOWED if "::" in place} - found
    assert sorted(stale) == []


def test_a_clock_that_is_set_ends_nothing_in_planes_hosting_and_activities() -> None:
    assert sorted(found_in_planes_and_activities(reads_wall_clock)) == sorted(WALL_CLOCK)


@pytest.mark.parametrize(
    "line", ["async with asyncio.timeout(3): pass", "await asyncio.wait_for(x, 3)", "from asyncio import timeout"]
)
def test_plain_limits_are_found(line: str) -> None:
    assert [*functions_with(f"async def work():\n    {line}\n", is_plain_limit)] == ["work"]


@pytest.mark.parametrize("line", ["began = time.time()", "from time import time", "field(default_factory=time.time)"])
def test_the_wall_clock_is_found(line: str) -> None:
    assert [*functions_with(f"async def work():\n    {line}\n", reads_wall_clock)] == ["work"]
