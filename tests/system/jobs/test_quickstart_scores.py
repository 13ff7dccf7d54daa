"""The quickstart benchmark is solved by its oracles and by nobody who does nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.paths import BENCHMARKS
from support.running import run_job

from benchflow.contracts.rollout import RolloutResult
from benchflow.jobs import Job

pytestmark = pytest.mark.docker

PACKAGE = BENCHMARKS / "quickstart"
TASKS = sorted(path.name for path in (PACKAGE / "tasks").iterdir())
SOME = ["cut-a-release", "log-report", "ttl-cache"]
"""Those in which every run does nothing, too: of steps, of a verifier that reads, and of one that runs tests."""

Results = dict[tuple[str, str], RolloutResult]


@pytest.fixture(scope="module")
def jobs(module_jobs: Path, packages_layer: None) -> list[Job]:
    """Of the oracle and of who does nothing, and of the oracle alone."""
    some = [PACKAGE / "tasks" / name for name in SOME]
    others = [PACKAGE / "tasks" / name for name in TASKS if name not in SOME]

    async def run() -> list[Job]:
        both = run_job(some, module_jobs, job_name="quickstart", agents=["oracle", "nop"], concurrency=2)
        alone = run_job(others, module_jobs, job_name="oracles", agents=["oracle"], concurrency=2)
        return list(await asyncio.gather(both, alone))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def results(jobs: list[Job]) -> Results:
    return {(result.task_name, result.agent): result for job in jobs for result in job.results()}


@pytest.mark.parametrize("task", TASKS)
def test_the_oracle_earns_the_whole_reward(results: Results, task: str) -> None:
    result = results[task, "oracle"]
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward == 1.0


@pytest.mark.parametrize("task", SOME)
def test_doing_nothing_does_not(results: Results, task: str) -> None:
    check_nothing(results[task, "nop"])


def check_nothing(result: RolloutResult) -> None:
    assert (result.error, result.verifier_error) == (None, None)
    assert result.reward is not None and result.reward < 1.0


@pytest.mark.soak
def test_doing_nothing_does_not_in_any_task(module_jobs: Path) -> None:
    job = asyncio.run(run_job([PACKAGE], module_jobs, job_name="nothing", agents=["nop"], concurrency=4))
    assert sorted(result.task_name for result in job.results()) == TASKS
    for result in job.results():
        check_nothing(result)


def test_every_task_has_its_results(results: Results) -> None:
    assert sorted(results) == sorted([*((task, "oracle") for task in TASKS), *((task, "nop") for task in SOME)])


def test_declared_artifacts_and_metrics_are_there(results: Results) -> None:
    def artifacts(task: str) -> set[str]:
        root = Path(str(results[task, "oracle"].directory))
        return {path.name for path in root.rglob("artifacts/**/*") if path.is_file()}

    assert "report.txt" in artifacts("log-report")
    assert "desk.log" in artifacts("ticket-desk")
    assert len(results["pack-telemetry", "oracle"].rewards or {}) > 1
    assert [step.step.name for step in results["cut-a-release", "oracle"].steps] == ["changelog", "bump", "package"]


def test_the_summary_compares_the_agents(jobs: list[Job]) -> None:
    summary = jobs[0].summarize()
    assert summary.by_agent["oracle"].mean == 1.0
    assert (summary.by_agent["nop"].mean or 0) < 0.5
    assert summary.errors == {}
