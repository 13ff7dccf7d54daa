"""Hosting and activities know no implementation of a plane: they go through the plane's door, and through contracts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

PACKAGE = ROOT / "benchflow"

DOORS = {"benchflow.planes.environment": "benchflow.planes.environment.exports"}
"""Packages of planes of which only one module may be imported: the one with their exports."""

KINDS = (
    *(f"benchflow.planes.agent.{kind}" for kind in ("acp", "acpx", "function", "policy")),
    *(f"benchflow.planes.sandbox.{kind}" for kind in ("docker", "driven", "local")),
    *(f"benchflow.planes.reward.{kind}" for kind in ("action", "output", "reasoning")),
)
"""Kinds of agents, sandboxes and rewards, each of which could be a package of somebody else. The rest of their planes
serves all of them."""

MODULES = sorted(path for room in ("hosting", "activities") for path in (PACKAGE / room).rglob("*.py"))


def imported(source: str) -> Iterator[str]:
    """Yield the modules that a source imports from, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # `from package import module` names a module of it, if there is such a file.
            place = ROOT.joinpath(*node.module.split("."))
            for alias in node.names:
                if place.joinpath(f"{alias.name}.py").is_file() or place.joinpath(alias.name).is_dir():
                    yield f"{node.module}.{alias.name}"


def behind_doors(source: str) -> list[str]:
    """Return the modules behind a plane's door that a source imports from."""
    return [
        name
        for name in imported(source)
        if any(
            f"{name}.".startswith(f"{plane}.") and not f"{name}.".startswith(f"{door}.")
            for plane, door in DOORS.items()
        )
        or any(f"{name}.".startswith(f"{kind}.") for kind in KINDS)
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_concrete_plane_is_named(path: Path) -> None:
    assert behind_doors(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from benchflow.planes.environment.manifest_environment import ManifestEnvironment",
        "import benchflow.planes.environment.world_state",
        "from benchflow.planes.environment import world_state",
        "from benchflow.planes.agent.acp.acp_session import AcpSession",
        "from benchflow.planes.agent import function",
        "from benchflow.planes.sandbox.docker import DockerDriver",
        "from benchflow.planes.reward import output",
        "def late():\n    from benchflow.planes.environment.environment_trial import try_world",
    ],
)
def test_what_lies_behind_a_door_is_found(line: str) -> None:
    assert behind_doors(line)


def test_kinds_are_where_they_are_looked_for() -> None:
    places = [ROOT.joinpath(*kind.split(".")) for kind in KINDS]
    assert [place for place in places if not place.is_dir() and not place.with_suffix(".py").is_file()] == []


def test_the_door_itself_may_be_used() -> None:
    assert behind_doors("from benchflow.planes.environment.exports import open_environment, try_world") == []
