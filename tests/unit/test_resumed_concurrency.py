"""Concurrency of a job that is resumed: as before, unless the user names a number."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Bench, bench
from support.stored_jobs import write_task

from benchflow.cli.job_report import describe
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import JobSpec
from benchflow.jobs.identity import claim, list_differences, record_options
from benchflow.jobs.job_plan import JobPlan, freeze, plan_job
from benchflow.paths import JobPaths
from benchflow.provenance import write_config
from benchflow.results.summary import read_spec
from benchflow.store import Store

__all__ = ["bench"]

pytestmark = pytest.mark.usefixtures("state")


def frozen(root: Path, concurrency: int) -> tuple[JobPaths, JobSpec]:
    """Return the directory and the specification of a job with this number."""
    task = root / "tasks" / "one"
    if not task.exists():
        write_task(root / "tasks", "one")
    config = {"paths": [task], "jobs_dir": root / "jobs", "job_name": "j", "sandbox": "noop"}
    planned = plan_job(JobConfig.model_validate(config | {"concurrency": concurrency}))
    return planned.directory, asyncio.run(freeze(planned, Store.open()))


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    """A job that was submitted with `-n 8`."""
    paths, spec = frozen(tmp_path, 8)
    claim(paths, spec)
    return paths


def resumed(bench: Bench, job: JobPaths, monkeypatch: pytest.MonkeyPatch, *options: str) -> JobPlan:
    """Return the plan with which `bench job resume` starts the job."""
    plans: list[JobPlan] = []

    def start(plan: JobPlan, **_: Any) -> None:
        plans.append(plan)

    monkeypatch.setattr("benchflow.cli.bench_submit.start", start)
    ran = bench("job", "resume", job.root.name, "--jobs-dir", job.root.parent, *options)
    assert ran.status == 0, ran.err
    (plan,) = plans
    return plan


@pytest.mark.parametrize(("options", "number"), [([], 8), (["-n", "3"], 3)])
def test_a_job_is_resumed_with_its_own_number_unless_another_is_given(
    bench: Bench, job: JobPaths, monkeypatch: pytest.MonkeyPatch, options: list[str], number: int
) -> None:
    plan = resumed(bench, job, monkeypatch, *options)
    assert plan.config.concurrency == number
    assert f" · {number} at a time" in describe(plan.config, 1)


def test_a_job_keeps_the_number_that_it_was_last_started_with(
    bench: Bench, job: JobPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, spec = frozen(tmp_path, 3)
    assert list_differences(read_spec(job), spec) == []
    record_options(job, spec)
    assert resumed(bench, job, monkeypatch).config.concurrency == 3


def test_a_job_of_an_earlier_version_has_the_default(
    bench: Bench, job: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(job, read_spec(job).model_copy(update={"concurrency": None}))
    stored = json.loads(job.config.read_text())
    del stored["concurrency"]
    job.config.write_text(json.dumps(stored))
    assert resumed(bench, job, monkeypatch, "--trust").config.concurrency == 4
