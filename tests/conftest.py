"""What all tests share: the Docker rule, the base image, and a state directory of their own.

Tests marked `docker` are skipped where no daemon answers, those marked `local` where no local sandbox can be, those
marked `agents` where the packages of agents cannot be had; with BENCHFLOW_TEST_DOCKER, BENCHFLOW_TEST_LOCAL and
BENCHFLOW_TEST_AGENTS set to `require` they fail instead, so that a green run cannot mean that nothing was tested.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from benchflow import stack
from benchflow.contracts.agent import NODE_VERSION
from benchflow.errors import BenchFlowError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.npm import NpmRegistry
from benchflow.planes.sandbox.local.requirements import require_one_root, require_platform

# Set where tests run beside each other: what a command prints into a pipe must not be broken at somebody's width.
os.environ.pop("COLUMNS", None)


@functools.cache
def docker_problem() -> str | None:
    """Why Docker tests cannot run here; None when they can."""
    try:
        client = docker.from_env(timeout=10)
        client.ping()
        client.close()
    except Exception as error:
        return f"no Docker daemon answers: {error}"
    return None


@functools.cache
def local_problem() -> str | None:
    """Why tests of the local sandbox cannot run here; None when they can."""
    try:
        require_platform()
        require_one_root(Path("/proc/self/mountinfo").read_text())
    except BenchFlowError as error:
        return error.message
    return None


@functools.cache
def agents_problem() -> str | None:
    """Why agents cannot be installed here; None when they can."""
    try:
        NpmRegistry().require("node", NODE_VERSION)
    except BenchFlowError as error:
        return f"the packages of agents cannot be had: {error.message}"
    return None


PROBLEMS = {"docker": docker_problem, "local": local_problem, "agents": agents_problem}
"""By marker, and by the last word of the variable that makes a skip a failure."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, find_problem in PROBLEMS.items():
        problem = find_problem() if item.get_closest_marker(marker) is not None else None
        if problem is None:
            continue
        if os.environ.get(f"BENCHFLOW_TEST_{marker.upper()}") == "require":
            pytest.fail(problem)
        pytest.skip(problem)


@pytest.fixture(scope="session")
def base_image() -> str:
    """The image that Docker tests start from: has a shell, coreutils, tar and python3."""
    return os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for this test only."""
    directory = tmp_path / "state"
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(directory))
    return directory


@pytest.fixture(scope="session")
def shared_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of one stack that all engine tests share; stopped when they are over."""
    directory = tmp_path_factory.mktemp("stack")
    yield directory
    stack.stop(StatePaths(directory))


@pytest.fixture
def engine(shared_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test on the shared stack, in a directory of its own; returns its jobs directory."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(shared_state))
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "jobs"
