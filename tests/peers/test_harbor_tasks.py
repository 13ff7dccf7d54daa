"""Tasks that use every field of Harbor's models, run by Harbor and by both our sandboxes: the rewards are the same.

BENCHFLOW_TEST_SEED draws others. Where our documented rules differ from Harbor's, `support.harbor_peer` says so, with
the reason.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.embedded import chance_of_this_run
from support.harbor_peer import (
    VARIABLES,
    Drawn,
    Ours,
    difference,
    draw_tasks,
    explain,
    is_refused,
    read_harbor,
    start_harbor,
)
from support.running import job_config

from benchflow.contracts.rollout_records import Failure, RolloutResult
from benchflow.errors import TaskError
from benchflow.jobs import Job, plan_job, submit

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1200)]

SEED = os.environ.get("BENCHFLOW_TEST_SEED", "1")
COUNT = 24
LONG_COUNT = 64
SANDBOXES = ("docker", "local")
CONCURRENCY = 3

Results = Mapping[str, Mapping[str, Ours]]
"""By sandbox, what became of the tasks of its one job by their names."""


@dataclass(frozen=True)
class Compared:
    """What became of the tasks of one seed. readings: Harbor's, by task. results: ours."""

    drawn: Drawn
    readings: Mapping[str, Any]
    results: Results

    def differences(self, sandbox: str) -> list[str]:
        found = []
        for name in self.drawn.runnable:
            task, reading, result = self.drawn.tasks[name], self.readings[name], self.results[sandbox][name]
            if told := difference(task, reading, result, sandbox):
                found.append(explain(name, self.drawn, reading, result, told))
        return found


@pytest.fixture(scope="module")
def stack_variables() -> dict[str, str]:
    return VARIABLES


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """The tasks of the default run."""
    return draw_tasks(tmp_path_factory.mktemp("drawn") / "tasks", SEED, COUNT)


@pytest.fixture(scope="module")
def compared(drawn: Drawn, module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return compare(drawn, module_jobs, tmp_path_factory.mktemp("harbor"))


def compare(drawn: Drawn, jobs: Path, out: Path) -> Compared:
    """Run the tasks with Harbor and, at the same time, in one job for each sandbox."""
    process = start_harbor(drawn, out / "trials")
    try:
        results = asyncio.run(run_jobs(drawn.paths, jobs))
        return Compared(drawn, read_harbor(process, out / "trials"), results)
    finally:
        process.terminate()
        process.wait()


async def run_jobs(paths: list[Path], jobs: Path) -> Results:
    submitted: dict[str, Job] = {}
    refused: dict[str, dict[str, Ours]] = {}
    for sandbox in SANDBOXES:
        options = {"job_name": sandbox, "sandbox": sandbox, "concurrency": CONCURRENCY, "retry": {"max_retries": 0}}
        refused[sandbox] = {}
        for path in paths:
            # A job of which one task is refused is refused as a whole.
            try:
                plan_job(job_config([path], jobs, **options))
            except TaskError as error:
                refused[sandbox][path.name] = error
        accepted = [path for path in paths if path.name not in refused[sandbox]]
        submitted[sandbox] = await submit(plan_job(job_config(accepted, jobs, **options)))
    for job in submitted.values():
        await job.wait()
    return {
        sandbox: refused[sandbox] | {result.task_name: result for result in job.results()}
        for sandbox, job in submitted.items()
    }


def error_of(result: Ours) -> Failure | TaskError | None:
    return result.error if isinstance(result, RolloutResult) else result


def test_each_field_of_harbors_models_is_known_and_drawn(drawn: Drawn) -> None:
    fields = drawn.fields
    assert fields["unknown"] == [], "say in fields.py what a value of these is"
    assert fields["gone"] == [], "Harbor's models have these no longer: remove them from fields.py"
    assert sorted({*fields["seen"]} - {*fields["drawn"]}) == [], "no task has them: draw more tasks, or another seed"
    assert len(fields["seen"]) > 60


@pytest.mark.docker
@pytest.mark.local
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_rewards_are_harbors(compared: Compared, sandbox: str) -> None:
    results = compared.results[sandbox]
    refused = {name: str(error_of(results[name])) for name in compared.drawn.runnable if is_refused(results[name])}
    print(f"{sandbox} refuses {len(refused)} of {len(compared.drawn.runnable)}: {refused}")
    found = compared.differences(sandbox)
    assert not found, f"{len(found)} of {len(compared.drawn.runnable)} differ\n\n" + "\n\n".join(found)
    measured = [result for result in results.values() if isinstance(result, RolloutResult) and result.rewards]
    assert len(measured) > COUNT // 4


@pytest.mark.docker
@pytest.mark.local
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_one_machine_cannot_carry_out_is_refused_by_name(compared: Compared, sandbox: str) -> None:
    for name, task in compared.drawn.tasks.items():
        if "beyond" in task:
            result = compared.results[sandbox][name]
            assert is_refused(result), (name, task, result)
            error = error_of(result)
            assert error is not None and error.key is not None
            assert re.search(rf"\b{error.key.split('.')[-1]}\b", task["config"]), (task, error.key)
            assert isinstance(result, TaskError) or (result.status == "errored" and result.rewards is None)


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.local
def test_rewards_of_many_more_tasks_are_harbors(module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = str(chance_of_this_run().random())
    root = tmp_path_factory.mktemp("many")
    compared = compare(draw_tasks(root / "tasks", seed, LONG_COUNT), module_jobs / "many", root)
    found = [text for sandbox in SANDBOXES for text in compared.differences(sandbox)]
    assert not found, "\n\n".join(found)
