"""The shared stack, the demo agent as a user's own, and the rollouts of the run's jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_world import Seen, declare
from support.system_job import Results


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user's own agents are declared: `demo`, to which a module may add others."""
    directory = tmp_path_factory.mktemp("agents")
    declare(directory)
    return directory


@pytest.fixture(scope="module")
def stack_variables(agents_dir: Path) -> dict[str, str]:
    return {"BENCHFLOW_AGENTS_DIR": str(agents_dir)}


@pytest.fixture
def local_turns(
    turns_results: Results,
    denied_results: Results,
    served_results: Results,
    leaves_results: Results,
    absent_results: Results,
    mute_results: Results,
    module_jobs: Path,
) -> dict[str, Seen]:
    """The rollouts of agents that speak for themselves, in the run's jobs in local sandboxes."""
    jobs = (turns_results, denied_results, served_results, leaves_results, absent_results, mute_results)
    return {name: Seen(result) for results in jobs for name, result in results.items()}


@pytest.fixture
def docker_turns(turns_in_docker_results: Results, module_jobs: Path) -> dict[str, Seen]:
    """The same in Docker."""
    return {name: Seen(result) for name, result in turns_in_docker_results.items()}
