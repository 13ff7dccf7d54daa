"""The quickstart benchmark is solved by its oracles and by nobody who does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import BENCHMARKS
from support.system_job import Results, SystemTasks

from benchflow.contracts.rollout_records import RolloutResult

TASKS = sorted((BENCHMARKS / "quickstart" / "tasks").iterdir())
NAMES = [path.name for path in TASKS]
PLAIN = ["cut-a-release", "log-report", "redact-stream"]
"""What needs no more than the base image. Others begin with a layer of packages, which a Docker daemon keeps from run
to run; the store of a run's local sandboxes is new, and it takes most of a minute to make it there."""

QUICK = ["cut-a-release", "ticket-desk", "pack-telemetry"]
"""Names of the tasks that every run solves in Docker: steps, a service with artifacts, metrics."""


def system_tasks(root: Path) -> SystemTasks:
    plain = [path for path in TASKS if path.name in PLAIN]
    return {"local": plain, "packages": [path for path in TASKS if path.name in QUICK], "idle": plain[:1]}


def long_system_tasks(root: Path) -> SystemTasks:
    others = [path for path in TASKS if path.name not in PLAIN]
    plain = [path for path in TASKS if path.name in PLAIN]
    return {
        "local": others,
        "packages": [path for path in TASKS if path.name not in QUICK],
        "idle": [*others, *plain[1:]],
    }


DOCKER = [
    pytest.param("packages", name, marks=[pytest.mark.docker, *([] if name in QUICK else [pytest.mark.long])])
    for name in NAMES
]
LOCAL = [
    pytest.param("local", name, marks=[pytest.mark.local, *([] if name in PLAIN else [pytest.mark.long])])
    for name in NAMES
]


@pytest.mark.usefixtures("system_jobs")
@pytest.mark.parametrize(("job", "task"), [*DOCKER, *LOCAL])
def test_the_oracle_earns_the_whole_reward(request: pytest.FixtureRequest, job: str, task: str) -> None:
    result: RolloutResult = request.getfixturevalue(f"{job}_results")[task]
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward == 1.0


@pytest.mark.docker
@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=[] if name in PLAIN[:1] else pytest.mark.long) for name in NAMES]
)
def test_doing_nothing_does_not(idle_results: Results, task: str) -> None:
    result = idle_results[task]
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward is not None and result.reward < 1.0


@pytest.mark.local
@pytest.mark.docker
def test_declared_artifacts_and_metrics_are_there(local_results: Results, packages_results: Results) -> None:
    def artifacts(result: RolloutResult) -> set[str]:
        return {path.name for path in Path(str(result.directory)).rglob("artifacts/**/*") if path.is_file()}

    assert "report.txt" in artifacts(local_results["log-report"])
    assert "desk.log" in artifacts(packages_results["ticket-desk"])
    assert len(packages_results["pack-telemetry"].rewards or {}) > 1
    assert [step.step.name for step in local_results["cut-a-release"].steps] == ["changelog", "bump", "package"]
