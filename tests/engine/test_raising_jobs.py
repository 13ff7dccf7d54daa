"""Whatever is raised in a job's workflow, it completes, with a row for each rollout and a summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from support.in_process_worker import InProcessWorker
from support.raising import PLANNED, RAISED, Raise, raising_workflows, sites
from temporalio.client import WorkflowExecutionStatus

from benchflow.contracts import ids

__all__ = ["raising_workflows"]

SHORT = [
    "job_workflow:run:0",
    "job_workflow:_name_next:0",
    "job_workflow:_start:0",
    "closing:finish_job:0",
    "work_retries:execute:0",
]
"""Awaits of each part of a job: what is cheap to show whenever the tests are run."""


@pytest.fixture
def raising(raising_workflows: None, worker: InProcessWorker) -> InProcessWorker:
    worker.options(
        start_total_sec=0.5,
        report_total_sec=0.5,
        retry_initial_sec=0.05,
        sweep_every_sec=0.2,
        sweep_after_sec=0,
        closing_sec=0.1,
    )
    return worker


async def test_a_job_completes_where_an_await_of_each_part_raises(raising: InProcessWorker) -> None:
    assert await raised(raising, SHORT, is_repeated=False) == len(SHORT)


@pytest.mark.long
@pytest.mark.parametrize("is_repeated", [False, True])
async def test_a_job_completes_whichever_await_raises(raising: InProcessWorker, is_repeated: bool) -> None:
    assert await raised(raising, sites(of_jobs=True), is_repeated=is_repeated) >= 18


async def raised(worker: InProcessWorker, wanted: Sequence[str], *, is_repeated: bool) -> int:
    """Run a job for each of the awaits that raises there. Returns how many of them were reached."""
    task = worker.task()
    jobs = []
    for number, site in enumerate(wanted):
        name = f"job-{number}"
        PLANNED[ids.job_id(name, str(worker.root / "jobs"))] = Raise(site, "before", is_repeated)
        jobs.append(await worker.submit(task, repeats=2, concurrency=1, job_name=name))
    problems = {}
    for site, job in zip(wanted, jobs, strict=True):
        async with asyncio.timeout(60):
            await job.wait()
        status = (await job.handle.describe()).status
        rows = job.directory.results.read_text().splitlines() if job.directory.results.exists() else []
        summary = json.loads(job.directory.summary.read_text()) if job.directory.summary.exists() else {}
        outcome = await job.handle.result()
        found = (status, len(rows), summary.get("finished"), outcome.counts.finished)
        if found != (WorkflowExecutionStatus.COMPLETED, 2, 2, 2):
            problems[site] = found
    assert problems == {}
    return len({job.id for job in jobs} & RAISED.keys())
