"""What all tests share: the Docker rule, the base image, a state directory of their own, and what agents need.

Tests marked `docker` are skipped where no daemon answers, those marked `snapshots` where it keeps none, those marked
`local` where no local sandbox can be, those marked `agents` where the packages of agents cannot be had; with
BENCHFLOW_TEST_DOCKER and the like set to `require` they fail instead, so that a green run cannot mean that nothing was
tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from pytest_timeout import Settings
from support import limits, run, slowest
from support.paths import BENCHMARKS

from benchflow.contracts.agent_record import NODE_VERSION
from benchflow.contracts.operator_options import CAPACITY_VARIABLE, WorkerOptions, WorkflowOptions
from benchflow.errors import BenchFlowError
from benchflow.host_files import hold_lock_async
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox, ensure_runtime
from benchflow.planes.agent.toolbox.npm import NpmRegistry
from benchflow.planes.sandbox.local.requirements import require_one_root, require_platform

# A run in the background of a shell, or of nohup, inherits that signals are ignored, and so would all programs that
# tests interrupt or end.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Set where tests run beside each other: what a command prints into a pipe must not be broken at somebody's width.
os.environ.pop("COLUMNS", None)

# Several processes of tests and several Temporal servers share a few cores: threads that look for work in vain are a
# sixth of what a server computes.
os.environ.setdefault("GOMAXPROCS", "1")

# Tests say themselves which options they are about.
for _variable in (*WorkerOptions.variables().values(), *WorkflowOptions.variables().values()):
    os.environ.pop(_variable, None)


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
        NpmRegistry().look_up("node", NODE_VERSION)
    except BenchFlowError as error:
        return f"the packages of agents cannot be had: {error.message}"
    return None


PACKAGES = "benchflow-test/packages"

LANES = {"crash": 0, "provider": 0, "engine": 1, "system": 2, "peers": 2, "unit": 3}
"""The directories of tests, in the order in which a run of all of them begins with their files: those that mostly wait
for processes first, so that no process of the run is left alone with one of them in the end; system late, because its
jobs run in the background from the start. The files of crash, and of each directory of provider, are spread over both
lanes, so that while one process of the run waits, the others compute, and do not want the same daemon, or toolbox."""

BEGUN_EARLY = frozenset({"test_hostile_input.py"})
"""Files that only compute, and in a long run for so many minutes that no other is left beside them in the end."""

RERUN = frozenset({"crash", "provider", "system", "agents"})
"""Markers of tests that depend on what else the machine does: one that fails is run once more, from the start."""


def pytest_configure() -> None:
    # Thousands of tests are made, and none goes: who looks through them again and again is a third of that work.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    # Workers and workflows in these processes make objects by the million, few of them in cycles.
    gc.set_threshold(50_000)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A marker would win over --reruns.
    reruns = 1 if config.option.reruns is None else config.option.reruns
    slow = slowest.listed()
    for item in items:
        if slowest.name_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.long)
        lane = item.path.relative_to(Path(__file__).parent).parts[0]
        if lane in RERUN:
            item.add_marker(lane)
        if RERUN & {marker.name for marker in item.iter_markers()}:
            item.add_marker(pytest.mark.flaky(reruns=reruns))
        limits.limit(item)
    places = _places(list(dict.fromkeys(item.path for item in items)))
    items.sort(key=lambda item: places[item.path])


def _places(files: list[Path]) -> dict[Path, tuple[int, float]]:
    """Return by file where it comes in a run: the place of its lane, and how far it is in it, from 0 to 1."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for file in files:
        lane, *below = file.relative_to(Path(__file__).parent).parts[:-1]
        if file.name in BEGUN_EARLY:
            lane = "provider"
        groups.setdefault((lane, *below) if lane == "provider" else (lane,), []).append(file)
    return {
        file: (LANES[lane], at / len(found)) for (lane, *_), found in groups.items() for at, file in enumerate(found)
    }


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> Generator[None, object, object]:
    result = yield
    limits.show_stacks_at_end(item, settings)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    limits.set_again(item)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what the run has shared: before pytest removes the directory that says what that is."""
    # Of a session that made no directory there is none to be looked for.
    base = session.config._tmp_path_factory._basetemp  # type: ignore[attr-defined]
    if "PYTEST_XDIST_WORKER" not in os.environ and base is not None:
        for problem in run.end(base / run.DIRECTORY):
            print(f"\nleft behind by this run: {problem}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Close with one line of counts and minutes, after what needed a rerun, and why, and the reasons for skips."""
    if terminalreporter.config.option.collectonly:
        return
    stats = terminalreporter.stats
    reruns = {report.nodeid: _reason(report) for report in stats.get("rerun", [])}
    for name, reason in sorted(reruns.items()):
        terminalreporter.write_line(f"needed a rerun: {name}: {reason}")
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    counts = {name: len(stats.get(key, [])) for name, key in (("passed", "passed"), ("skipped", "skipped"))}
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    minutes = (time.time() - terminalreporter._session_start.time) / 60
    terminalreporter.write_line(
        f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped, "
        f"{len(reruns)} rerun, {minutes:.1f} minutes"
    )


def _reason(report: pytest.TestReport) -> str:
    """Say where and why a test failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().rpartition("\n")[2]
    return f"{Path(crash.path).name}:{crash.lineno}: {crash.message.partition(chr(10))[0]}"


PROBLEMS = {"docker": docker_problem, "local": local_problem, "agents": agents_problem}
"""By marker, and by the last word of the variable that makes a skip a failure."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limits.set_again(item)
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
    dockerfile = BENCHMARKS / "quickstart/tasks/ttl-cache/environment/Dockerfile"
    head, found, _ = dockerfile.read_text().partition("WORKDIR")
    assert found and head.count("RUN") == 1

    async def build() -> None:
        async with hold_lock_async(kept.root / "packages.lock"):
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
def run_directory(pytestconfig: pytest.Config) -> Path:
    """The directory of what all processes of this run share; see `support.run`."""
    return run.run_directory(pytestconfig)


@pytest.fixture(scope="session")
def kept(run_directory: Path) -> StatePaths:
    """A state directory for toolboxes alone, in which the processes of this run build each once.

    Other state directories share them by a link to them under the same name.
    """
    paths = StatePaths(run_directory / "kept")
    paths.toolboxes.mkdir(parents=True, exist_ok=True)
    return paths


@pytest.fixture(scope="session")
def server(run_directory: Path) -> str:
    """The address of the run's one Temporal server, without any worker; see `support.run.namespace`."""
    return str(run.once(run_directory, "server", run.start_server)["address"])


@pytest.fixture(scope="session")
def runtime(kept: StatePaths) -> Toolbox:
    """Node, and the engine's own programs that it runs."""
    return asyncio.run(ensure_runtime(kept))


@pytest.fixture(scope="session")
def shared_state(run_directory: Path) -> Path:
    """The state directory of the one embedded stack that all system tests of this run share."""
    return run.stack_state(run_directory)


@contextlib.contextmanager
def on_stack(state: Path, **variables: str) -> Iterator[None]:
    """Use the embedded stack of a state directory, and no other engine, with these environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
            patch.delenv(name, raising=False)
        # Rollouts that wait for what a test does, of all its processes, must not keep the places of those that act.
        own = {"BENCHFLOW_STATE_DIR": str(state), CAPACITY_VARIABLE: "32"}
        for name, value in (own | variables).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def stack_variables() -> dict[str, str]:
    """Environment variables of a module's jobs; a directory's conftest, or a module, sets its own."""
    return {}


@pytest.fixture(scope="module")
def module_jobs(
    shared_state: Path, stack_variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Use the shared stack in all tests of a module; returns a jobs directory of the module's own."""
    with on_stack(shared_state, **stack_variables):
        yield tmp_path_factory.mktemp("module") / "jobs"


@pytest.fixture
def engine(shared_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run the test on the shared stack, in a directory of its own; returns its jobs directory."""
    monkeypatch.chdir(tmp_path)
    with on_stack(shared_state):
        yield tmp_path / "jobs"
