"""The shared stack, the demo agent as a user's own, and the jobs of the demo agent that a whole run shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_world import Seen, declare
from support.demo_jobs import DemoJobs
from support.made_once import attempt_of


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user's own agents are declared: `demo`, to which a module may add others."""
    directory = tmp_path_factory.mktemp("agents")
    declare(directory)
    return directory


@pytest.fixture(scope="module")
def stack_variables(agents_dir: Path) -> dict[str, str]:
    return {"BENCHFLOW_AGENTS_DIR": str(agents_dir)}


@pytest.fixture(scope="session")
def demo_jobs(request: pytest.FixtureRequest, run_directory: Path, shared_state: Path) -> DemoJobs:
    """The jobs that have tasks of every module of which a test is to be run. Long tests have jobs of their own."""
    items = [item for item in request.session.items if item.get_closest_marker("long") is None]
    modules = {item.getparent(pytest.Module).obj for item in items}  # type: ignore[union-attr]
    writers = [module.demo_tasks for module in modules if hasattr(module, "demo_tasks")]
    return DemoJobs(run_directory, shared_state, sorted(writers, key=lambda writer: writer.__module__))


@pytest.fixture(autouse=True)
def early(request: pytest.FixtureRequest, demo_jobs: DemoJobs) -> None:
    """Begin with the run's jobs at once: those who read their results, `test_turns*.py`, come last."""
    for sandbox in ("local", "docker"):
        if request.node.get_closest_marker(sandbox):
            demo_jobs.submit(sandbox)


@pytest.fixture
def local_turns(request: pytest.FixtureRequest, demo_jobs: DemoJobs, module_jobs: Path) -> dict[str, Seen]:
    """The rollouts of the run's jobs in local sandboxes."""
    return demo_jobs.seen("local", attempt_of(request))


@pytest.fixture
def docker_turns(request: pytest.FixtureRequest, demo_jobs: DemoJobs, module_jobs: Path) -> dict[str, Seen]:
    """The rollouts of the run's jobs in Docker."""
    return demo_jobs.seen("docker", attempt_of(request))
