"""What all tests share: the Docker rule, the base image, a state directory of their own, and what agents need.

Tests marked `docker` are skipped where no daemon answers, those marked `local` where no local sandbox can be, those
marked `agents` where the packages of agents cannot be had; with BENCHFLOW_TEST_DOCKER, BENCHFLOW_TEST_LOCAL and
BENCHFLOW_TEST_AGENTS set to `require` they fail instead, so that a green run cannot mean that nothing was tested.
"""

from __future__ import annotations

import asyncio
import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from benchflow import stack
from benchflow.contracts.agent import NODE_VERSION
from benchflow.errors import BenchFlowError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox, ensure_runtime
from benchflow.planes.agent.toolbox.directory import remove_tree
from benchflow.planes.agent.toolbox.npm import NpmRegistry
from benchflow.planes.sandbox.local.requirements import require_one_root, require_platform
from benchflow.planes.sandbox.records import file_lock

# Set where tests run beside each other: what a command prints into a pipe must not be broken at somebody's width.
os.environ.pop("COLUMNS", None)


@functools.cache
def docker_problem() -> str | None:
    """Why Docker tests cannot run here; None when they can."""
    try:
        client = docker.from_env(timeout=60)
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


KEPT = "kept"
PACKAGES = "benchflow-test/packages"

LONG = (
    "agents/test_real_agents.py",
    "crash/test_office_trees_killed.py",
    "planes/sandbox/test_conformance_docker.py",
    "crash/test_agent_turn.py",
    "benchmarks/test_office_tasks.py",
    "planes/agent/test_acpx.py",
    "attacks/test_attacks_score_nothing.py",
    "planes/sandbox/test_conformance_local.py",
    "crash/test_worker_killed.py",
    "crash/test_gateway_killed.py",
    "agents/test_real_replays.py",
    "perf/test_perf_scripts.py",
    "crash/test_clean_room_killed.py",
    "engine/test_quickstart_scores.py",
    "planes/environment/test_state_crashes.py",
    "crash/test_server_killed.py",
    "agents/test_misbehaving_agents.py",
    "crash/test_local_debris.py",
    "cli/test_cli_env.py",
    "crash/test_world_killed.py",
    "planes/sandbox/test_local_network.py",
    "planes/sandbox/test_local_store.py",
    "crash/test_over.py",
    "agents/test_questions.py",
    "engine/test_clean_room.py",
    "engine/test_trees.py",
    "crash/test_random_kills.py",
    "workflows/test_continue_as_new.py",
    "planes/environment/test_environment_crashes.py",
    "crash/test_two_stacks.py",
    "perf/test_perf_state.py",
    "engine/test_stack.py",
    "workflows/test_job_window.py",
    "crash/test_worker_replaced.py",
    "workflows/test_cluster.py",
)
"""Files of some half a minute and more. Where files are shared out among processes, these come first, so that none is
left alone with one of them in the end. Those that wait and those that compute are mixed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONG)}
    assert all(path.is_file() for path in places), "LONG names a file that is not there"
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the toolboxes, whose two gigabytes tell nobody why a test failed, when all processes have ended."""
    # Of a session that made no directory there is none to be looked for.
    base = session.config._tmp_path_factory._basetemp  # type: ignore[attr-defined]
    if "PYTEST_XDIST_WORKER" not in os.environ and base is not None:
        remove_tree(base / KEPT)


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


@pytest.fixture(scope="session")
def packages_layer(kept: StatePaths) -> None:
    """The layer of packages with which many images of this repository begin, in the daemon's cache.

    A daemon that is asked for several of them at once would carry out its commands once for each.
    """
    dockerfile = Path(__file__).parents[1] / "benchmarks" / "quickstart/tasks/ttl-cache/environment/Dockerfile"
    head, found, _ = dockerfile.read_text().partition("WORKDIR")
    assert found and head.count("RUN") == 1

    async def build() -> None:
        async with file_lock(kept.root / "packages.lock"):
            client = docker.from_env(timeout=600)
            await asyncio.to_thread(client.images.build, fileobj=io.BytesIO(head.encode()), tag=PACKAGES, rm=True)
            client.close()

    asyncio.run(build())


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for this test only."""
    directory = tmp_path / "state"
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(directory))
    return directory


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> StatePaths:
    """A state directory for toolboxes alone, in which all processes of this run build each once.

    Other state directories share them by a link to them under the same name.
    """
    root = tmp_path_factory.getbasetemp()
    paths = StatePaths((root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / KEPT)
    paths.toolboxes.mkdir(parents=True, exist_ok=True)
    return paths


@pytest.fixture(scope="session")
def runtime(kept: StatePaths) -> Toolbox:
    """Node, and the engine's own programs that it runs."""
    return asyncio.run(ensure_runtime(kept))


@pytest.fixture(scope="session")
def shared_state(kept: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of one stack that all engine tests share; stopped when they are over."""
    directory = tmp_path_factory.mktemp("stack")
    StatePaths(directory).toolboxes.symlink_to(kept.toolboxes)
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
