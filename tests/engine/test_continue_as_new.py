"""A job of bounded history: it continues as new again and again, hears everything, and runs each rollout once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
from support.in_process_worker import InProcessWorker
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from benchflow import errors
from benchflow.contracts.counts import RewardSums
from benchflow.jobs import Job
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.workflows.backlog import Backlog


@pytest.fixture
def short_histories(worker: InProcessWorker) -> None:
    worker.options(history_limit=50, start_batch=5)


async def runs_of(worker: InProcessWorker, job_id: str) -> list[int]:
    """How many events each run of the job's workflow has."""
    client = await connect(worker.target)
    described = await client.get_workflow_handle(job_id).describe()
    run: str | None = described.raw_description.workflow_execution_info.first_run_id
    lengths = []
    while run:
        events = [event async for event in client.get_workflow_handle(job_id, run_id=run).fetch_history_events()]
        lengths.append(len(events))
        run = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return lengths


@asynccontextmanager
async def busy(job: Job) -> AsyncIterator[None]:
    """Fill a job's history with signals, so that it continues as new several times a second."""

    async def signal() -> None:
        while True:
            await job.set_concurrency(1)
            await asyncio.sleep(0.01)

    signals = asyncio.create_task(signal())
    try:
        yield
    finally:
        signals.cancel()
        await asyncio.wait([signals])


@pytest.mark.usefixtures("short_histories")
async def test_every_rollout_runs_once_in_histories_of_bounded_length(worker: InProcessWorker) -> None:
    # Two a task, since one rollout may meet them all, and its third would be its end.
    worker.provider.faults = {task: [errors.SandboxLostError("gone") for _ in range(2)] for task in ("play", "other")}
    job = await worker.submit(worker.task(), worker.task("other"), repeats=6, concurrency=6)
    results = await worker.results(job)
    assert len(results) == 12
    assert {result.status for result in results} == {"passed"}
    assert sum(worker.provider.turns.values()) == 16
    assert sum(result.attempt for result in results) == 16
    assert worker.provider.most_open <= 6
    lengths = await runs_of(worker, job.id)
    # How many events there are depends on how many of them a task of the workflow finds at once.
    assert len(lengths) > 2
    assert max(lengths) < 50 + 80
    outcome = await job.handle.result()
    assert (outcome.counts.passed, outcome.not_started) == (12, 0)
    assert outcome.counts.agents == {"oracle": RewardSums(n=12, total=12.0)}


@pytest.mark.usefixtures("short_histories")
async def test_signals_are_heard_and_settings_kept_across_runs(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=16, concurrency=2)
    victim = (await worker.in_turn(2))[0]
    # It is cancelled once it runs, which is many runs of the job later.
    last = job.spec.rollout_id(job.id, 15)
    await job.cancel_rollout(last)

    async def continued() -> bool:
        # Signals fill the history, so that runs end while these two rollouts stay open.
        await job.set_concurrency(3)
        return len(await runs_of(worker, job.id)) > 1

    await until(continued)
    await job.pause()
    worker.provider.release(*[rollout for rollout in await worker.in_turn(3) if rollout != victim])
    progress = await worker.progress(job, lambda p: p.counts.passed == 2)
    assert (progress.open, progress.paused, progress.concurrency) == ([victim], True, 3)
    await job.unpause()
    await worker.in_turn(3)
    await job.cancel_rollout(victim)
    await worker.progress(job, lambda p: p.counts.cancelled == 1)

    async def is_over() -> bool:
        # The last one's turn does not end by itself.
        worker.provider.release(*[rollout for rollout in worker.provider.in_turn if rollout != last])
        return not await job.is_running()

    await until(is_over)
    results = await worker.results(job)
    assert len(results) == 16
    assert {r.workflow_id for r in results if r.status != "passed"} == {victim, last}
    assert set(worker.provider.turns.values()) == {1}
    assert worker.provider.most_open == 3


async def test_a_job_that_has_given_up_starts_nothing_in_its_next_run_either(worker: InProcessWorker) -> None:
    worker.options(history_limit=30, start_total_sec=0)
    n_failures, count = 0, Backlog.__len__

    def failing(backlog: Backlog) -> int:
        nonlocal n_failures
        if n_failures:
            n_failures -= 1
            raise KeyError("broken")
        return count(backlog)

    worker.patch.setattr(Backlog, "__len__", failing)
    worker.provider.held = True
    worker.provider.faults["play"] = [errors.SandboxLostError("gone")]
    job = await worker.submit(repeats=2, concurrency=1)
    await worker.in_turn(1)
    # The window fails when its time is over.
    n_failures = 1

    async def has_continued() -> bool:
        await job.set_concurrency(1)
        return not n_failures and len(await runs_of(worker, job.id)) > 1

    await until(has_continued)
    worker.provider.release_all()
    # Neither is the first one run again, nor does the second one start.
    results = await worker.results(job)
    assert [(one.status, one.attempt) for one in results] == [("errored", 1)] * 2
    assert worker.provider.turns.total() == 1


@pytest.mark.parametrize("end", ["terminated", "deleted"])
async def test_a_job_that_continues_as_new_more_often_than_it_sweeps_does_sweep(
    worker: InProcessWorker, end: str
) -> None:
    worker.options(history_limit=20, sweep_every_sec=2, sweep_after_sec=0)
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=1)
    (first,) = await worker.in_turn(1)
    client = await connect(worker.target)
    async with busy(job):
        if end == "terminated":
            await client.get_workflow_handle(first).terminate()
        else:
            execution = WorkflowExecution(workflow_id=first)
            await client.workflow_service.delete_workflow_execution(
                DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
            )
        # It is swept while the job is busy: only then does the second one start.
        await worker.begun(2)
    worker.provider.release_all()
    assert sorted(one.status for one in await worker.results(job)) == ["errored", "passed"]


async def test_the_time_for_starts_that_fail_goes_on_in_the_next_run(worker: InProcessWorker) -> None:
    worker.options(history_limit=20, start_total_sec=3)
    names: list[str] = []

    def refuse(name: str, *args: object, **settings: object) -> NoReturn:
        names.append(name)
        raise OSError("refused")

    # To the end of the test: a task of the workflow that is tried again replays what was refused.
    worker.patch.setattr(workflow, "start_child_workflow", refuse)
    job = await worker.submit(retry={"min_wait_sec": 0.01, "max_wait_sec": 0.1})
    async with busy(job):
        await until(lambda: len(names) > 2)
        progress = await worker.progress(job, lambda p: p.counts.errored == 1)
    assert progress.counts.finished == 1
    (result,) = await worker.results(job)
    assert result.error is not None and "refused" in result.error.message


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["running", "cancelled"])
async def test_the_history_of_a_job_in_which_nothing_happens_is_bounded(
    worker: InProcessWorker, is_cancelled: bool
) -> None:
    # Sweeps alone fill the history, while a sandbox takes its time to start, whether the job is cancelled or not.
    worker.options(history_limit=30, sweep_every_sec=0.05, sweep_after_sec=0.05)
    started = worker.provider.stubborn_start = asyncio.Event()
    job = await worker.submit()

    async def is_starting() -> bool:
        return worker.provider.starting == 1

    await until(is_starting)
    if is_cancelled:
        await job.cancel()

    async def continued() -> bool:
        return len(await runs_of(worker, job.id)) > 1

    await until(continued)
    started.set()
    (result,) = await worker.results(job)
    assert result.status == ("cancelled" if is_cancelled else "passed")
    assert max(await runs_of(worker, job.id)) < 30 + 30


@pytest.mark.long
@pytest.mark.usefixtures("short_histories")
async def test_a_job_is_cancelled_in_a_later_run(worker: InProcessWorker) -> None:
    job = await worker.submit(repeats=40, concurrency=2)
    await worker.begun(15)
    worker.provider.held = True
    waiting = await worker.in_turn(2)
    await job.cancel()
    results = await worker.results(job)
    assert sorted(r.workflow_id for r in results if r.status == "cancelled") == waiting
    outcome = await job.handle.result()
    assert outcome.counts.cancelled == 2
    assert outcome.counts.passed + outcome.counts.cancelled + outcome.not_started == 40
    assert len(await runs_of(worker, job.id)) > 1
