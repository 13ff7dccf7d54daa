"""Whatever is raised in a job's workflow, it completes, with a row for each rollout and a summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from support.raising_jobs import RAISED, raising_workflow, sites
from support.theatre import Theatre
from temporalio.client import WorkflowExecutionStatus
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "benchflow-raising"
"""Of the jobs alone: their rollouts and activities are the other worker's."""


@pytest.fixture
async def raising(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Theatre]:
    theatre.options(
        start_total_sec=0.5,
        report_total_sec=0.5,
        retry_initial_sec=0.05,
        sweep_every_sec=0.2,
        sweep_after_sec=0,
        closing_sec=0.1,
    )
    monkeypatch.setattr("benchflow.jobs.client.SHARED_QUEUE", QUEUE)
    with raising_workflow() as made:
        worker = Worker(
            theatre.context.client,
            task_queue=QUEUE,
            workflows=[made],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            yield theatre


@pytest.mark.long
@pytest.mark.parametrize("how", ["once", "always"])
async def test_a_job_completes_whichever_await_raises(raising: Theatre, how: str) -> None:
    before = set(RAISED)
    task = raising.task()
    jobs = []
    for number, _ in enumerate(sites()):
        jobs.append(await raising.submit(task, repeats=2, concurrency=1, job_name=f"{number}-{how}"))
    problems = {}
    for number, (site, job) in enumerate(zip(sites(), jobs, strict=True)):
        async with asyncio.timeout(60):
            await job.wait()
        status = (await job.handle.describe()).status
        rows = job.directory.results.read_text().splitlines() if job.directory.results.exists() else []
        summary = json.loads(job.directory.summary.read_text()) if job.directory.summary.exists() else {}
        outcome = await job.handle.result()
        found = (status, len(rows), summary.get("finished"), outcome.counts.finished)
        if found != (WorkflowExecutionStatus.COMPLETED, 2, 2, 2):
            problems[number, site] = found
    assert problems == {}
    assert len({job.id for job in jobs} & (RAISED - before)) >= 20
