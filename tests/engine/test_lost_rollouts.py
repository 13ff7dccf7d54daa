"""A rollout that can't report gets a row; one that has reported keeps it, and a job ends whatever it can't read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.in_process_worker import InProcessWorker
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Worker

from benchflow import secrets
from benchflow.activities.job_activities import JobActivities
from benchflow.activities.job_secrets import remove_secrets_of_ended_jobs
from benchflow.activities.lost_activities import LostActivities
from benchflow.activities.reaper import Reaper
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts.activities import LostInput, OpenRollouts, ReportedState
from benchflow.contracts.job import OpenRollout, Origin, RolloutSpec
from benchflow.contracts.lost_rollouts import LostRollout
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.contracts.rollout_records import Failure, RolloutOutcome
from benchflow.contracts.sandbox_provider import OwnedSandbox
from benchflow.errors import MissingArtifactError, SandboxLostError, ServerUnavailableError, TaskError
from benchflow.hosting.reporting import HostedReport
from benchflow.jobs import Job
from benchflow.results import lost_rows as lost_results
from benchflow.store import Store
from benchflow.testing.waiting import until
from benchflow.workflow_executions import find_pack

GONE = Failure(type="RolloutTerminatedError", category="terminated", message="it ended without a result: unknown")


async def lost_input(worker: InProcessWorker, job: Job, lost: LostRollout) -> LostInput:
    ref = await Store.open().put_bytes(job.spec.model_dump_json().encode())
    origin = {"host_id": worker.context.host_id, "job_dir": str(job.directory.root)}
    return LostInput.model_validate(
        {"job_id": job.id, "job_name": job.name, "spec": ref, "origin": origin, "rollouts": [lost], "failure": GONE}
    )


async def test_a_lost_row_never_replaces_a_score(worker: InProcessWorker) -> None:
    job = await worker.submit()
    (result,) = await worker.results(job)
    assert result.run_id is not None
    lost = LostActivities(worker.context)
    given = await lost_input(worker, job, LostRollout(index=0, attempt=1, run_id=result.run_id))
    (outcome,) = (await lost.report_lost(given)).outcomes
    assert (outcome.status, outcome.rewards, outcome.error) == ("passed", {"reward": 1.0}, None)
    assert job.results() == [result]
    assert len(job.directory.results.read_text().splitlines()) == 1


async def test_a_result_that_another_host_delivered_stands(worker: InProcessWorker) -> None:
    """It is not fetched yet, where a worker of the host that submitted the job asks after its rollout."""
    with worker.patch.context() as elsewhere:
        elsewhere.setattr(WorkerContext, "is_origin", lambda *_: False)
        job = await worker.submit()
        await job.handle.result()
    rollout = job.spec.rollout_id(job.id, 0)
    described = await worker.context.client.get_workflow_handle(rollout).describe()
    given = await lost_input(worker, job, LostRollout(index=0, attempt=1, run_id=str(described.run_id)))
    lost = LostActivities(worker.context)
    (outcome,) = (await lost.report_lost(given)).outcomes
    assert (outcome.status, outcome.rewards, outcome.error) == ("passed", {"reward": 1.0}, None)
    assert outcome.pack is not None and not job.directory.results.exists()
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)


@pytest.mark.parametrize("way", ["with its trajectory", "with a row only"])
async def test_a_report_that_comes_while_the_lost_row_is_written_stays(worker: InProcessWorker, way: str) -> None:
    job = await worker.submit()
    (result,) = await worker.results(job)
    assert result.run_id is not None and result.directory is not None
    file = Path(result.directory) / "result.json"
    late = file.read_bytes()
    file.unlink()
    begin = lost_results.prepare_row

    def report_late(*given: Any) -> None:
        begin(*given)
        file.write_bytes(late)

    worker.patch.setattr("benchflow.activities.lost_activities.prepare_row", report_late)
    worker.patch.setattr(lost_results, "prepare_row", report_late)
    if way == "with a row only":

        async def fail(*_: Any, **__: Any) -> None:
            file.unlink()
            raise ValueError("unreadable")

        worker.patch.setattr(HostedReport, "write", fail)
    given = await lost_input(worker, job, LostRollout(index=0, attempt=1, run_id=result.run_id))
    (outcome,) = (await LostActivities(worker.context).report_lost(given)).outcomes
    assert (outcome.status, outcome.rewards, outcome.error) == ("passed", {"reward": 1.0}, None)
    assert file.read_bytes() == late
    assert len(job.directory.results.read_text().splitlines()) == 1


async def test_a_namespace_that_is_not_loaded_yet_has_forgotten_no_rollout(worker: InProcessWorker) -> None:
    client = Client(worker.context.client.service_client, namespace="not-there")
    context = replace(worker.context, client=client, options=WorkerOptions(unknown_grace_sec=0))
    with pytest.raises(ServerUnavailableError):
        await JobActivities(context).rollout_states(OpenRollouts(ids=["any"]))
    # Nor has a rollout no pack there: it would be run again.
    with pytest.raises(ServerUnavailableError):
        await find_pack(client, "any")
    assert await find_pack(worker.context.client, "any") is None
    labels = {"benchflow.workflow": "any", "benchflow.run": "any", "benchflow.deadline": "0"}
    reaper = Reaper(context)
    assert not await reaper._is_orphan(OwnedSandbox(name="any", handle="any", labels=labels))


async def test_a_rollout_whose_outcome_is_not_in_the_store_holds_up_no_other(worker: InProcessWorker) -> None:
    job = await worker.submit(repeats=2)
    await worker.results(job)
    first, second = (job.spec.rollout_id(job.id, index) for index in range(2))
    activities, state = JobActivities(worker.context), JobActivities._ask_state

    async def missing(self: JobActivities, workflow_id: str, asked: OpenRollouts) -> ReportedState:
        if workflow_id == first:
            raise MissingArtifactError("a blob is not where this host looks for it")
        return await state(self, workflow_id, asked)

    worker.patch.setattr(JobActivities, "_ask_state", missing)
    states = (await activities.rollout_states(OpenRollouts(ids=[first, second]))).states
    assert [one.status for one in states] == ["running", "completed"]


async def test_the_result_of_an_earlier_run_is_put_aside_for_a_lost_row(worker: InProcessWorker) -> None:
    job = await worker.submit()
    (result,) = await worker.results(job)
    lost = LostActivities(worker.context)
    given = await lost_input(worker, job, LostRollout(index=0, attempt=1, run_id="another"))
    (outcome,) = (await lost.report_lost(given)).outcomes
    assert (outcome.status, outcome.error) == ("errored", GONE)
    kept = json.loads((Path(str(result.directory)) / "attempts" / "1" / "result.json").read_text())
    assert kept["rewards"] == {"reward": 1.0}


async def test_a_rollout_without_a_result_has_a_row_although_its_retry_is_cancelled(worker: InProcessWorker) -> None:
    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise TaskError("it cannot be written")

    worker.patch.setattr(HostedReport, "write", refuse)
    retry = {"max_retries": 1, "min_wait_sec": 3600, "max_wait_sec": 3600, "categories": [TaskError.category]}
    job = await worker.submit(retry=retry)

    async def waits_for_its_retry() -> bool:
        progress = await job.progress()
        has_run = worker.provider.turns.total() == 1
        return has_run and progress is not None and (progress.open_count, progress.waiting) == (0, 1)

    await until(waits_for_its_retry)
    await job.cancel()
    await job.wait()
    (row,) = [json.loads(row) for row in job.directory.results.read_text().splitlines()]
    assert (row["status"], row["reward"], row["attempt"]) == ("errored", None, 1)
    assert row["error"]["message"] == "it cannot be written"
    assert json.loads(job.directory.summary.read_text())["finished"] == 1


async def test_a_job_whose_specification_is_corrupt_ends_with_a_row_for_each_rollout(worker: InProcessWorker) -> None:
    worker.options(start_total_sec=0.3)
    worker.provider.held = True
    job = await worker.submit(repeats=3, concurrency=1)
    (first,) = await worker.in_turn(1)
    # Its first batch named them all: a second run of the job has to name them again.
    await job.engine.client.get_workflow_handle(job.id).terminate()
    worker.provider.release_all()
    await until(lambda: has_result(job, first))
    ref = await worker.context.store.put_bytes(job.spec.model_dump_json().encode())
    blob = Path(ref.uri.removeprefix("file://"))
    blob.chmod(0o600)
    blob.write_bytes(b"x" * ref.size)
    worker.context._jobs.clear()
    again = await worker.submit(repeats=3, concurrency=1)
    await again.wait()
    outcome = await again.handle.result()
    assert (await again.handle.describe()).status == WorkflowExecutionStatus.COMPLETED
    rows = [json.loads(row) for row in again.directory.results.read_text().splitlines()]
    summary = json.loads(again.directory.summary.read_text())
    assert sorted(row["status"] for row in rows) == ["errored", "errored", "passed"]
    assert {row["error_category"] for row in rows} == {"store", None}
    assert (summary["finished"], summary["errored"], outcome.counts.errored) == (3, 2, 2)


async def has_result(job: Job, rollout: str) -> bool:
    return rollout in {result.workflow_id for result in job.results()}


async def test_a_wish_to_cancel_survives_continue_as_new(worker: InProcessWorker) -> None:
    """The job begins a run in which the wish was not sent yet."""
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=2)
    victim, other = await worker.in_turn(2)
    await job.handle.terminate()
    described = await job.handle.describe()
    events = [event async for event in job.handle.fetch_history_events()]
    (first_input,) = events[0].workflow_execution_started_event_attributes.input.payloads
    carried = json.loads(first_input.data)
    ids = {job.spec.rollout_id(job.id, index): index for index in range(2)}
    open_ = [OpenRollout(index=ids[one], attempt=1, id=one, since=time.time()) for one in (victim, other)]
    carried |= {"pending": [], "open": [one.model_dump() for one in open_], "to_cancel": [victim]}
    await job.engine.client.start_workflow("JobWorkflow", carried, id=job.id, task_queue=described.task_queue)
    await worker.progress(job, lambda p: p.counts.cancelled == 1)
    worker.provider.release_all()
    results = {result.workflow_id: result.status for result in await worker.results(job)}
    assert results == {victim: "cancelled", other: "passed"}


async def test_the_secrets_of_a_terminated_job_are_removed(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    paths = worker.context.paths
    secrets.store_secrets(paths, job.id, set(), {"KEY": "value-of-it"})
    await remove_secrets_of_ended_jobs(worker.context)
    assert [name for name, _ in secrets.list_stored_secrets(paths)] == [job.id]
    await job.handle.terminate()
    # Its rollout goes on, with them.
    await remove_secrets_of_ended_jobs(worker.context)
    assert [name for name, _ in secrets.list_stored_secrets(paths)] == [job.id]
    worker.provider.release_all()

    async def are_removed() -> bool:
        await remove_secrets_of_ended_jobs(worker.context)
        return list(secrets.list_stored_secrets(paths)) == []

    await until(are_removed)
    # Left anew, for a submit that starts the job again in a moment.
    secrets.store_secrets(paths, job.id, set(), {"KEY": "value-of-it"})
    (file,) = paths.secrets.iterdir()
    os.utime(file, (time.time() + 5, time.time() + 5))
    await remove_secrets_of_ended_jobs(worker.context)
    assert [name for name, _ in secrets.list_stored_secrets(paths)] == [job.id]


@workflow.defn(name="RolloutWorkflow", sandboxed=False)
class BrokenRollout:
    """A rollout whose tasks fail, as those of a version that can't replay its history."""

    @workflow.run
    async def run(self, spec: RolloutSpec) -> RolloutOutcome:
        raise KeyError("broken")


async def test_a_rollout_whose_workflow_task_fails_again_and_again_is_ended(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_WORKFLOW_STUCK_ATTEMPTS", "3")
    worker.options(stuck_after_sec=0, sweep_every_sec=0.3, sweep_after_sec=0)
    job = await worker.submit()
    await worker.results(job)
    rollout = job.spec.rollout_id(job.id, 0)
    spec = job.spec.rollout(job.id, Origin(host_id=worker.context.host_id, job_dir=str(job.directory.root)), 0)
    async with Worker(worker.context.client, task_queue="benchflow-broken", workflows=[BrokenRollout]):
        # From the second attempt on, an SDK tells the server nothing of a failed task, which waits for its timeout.
        await worker.context.client.start_workflow(
            "RolloutWorkflow", spec, id=rollout, task_queue="benchflow-broken", task_timeout=timedelta(seconds=1)
        )
        trouble = await until(lambda: job.trouble(rollout))
        again = await worker.submit(again=("passed",))
        (result,) = await worker.results(again)
    assert "workflow task, attempt" in str(trouble) and "broken" in str(trouble)
    assert result.error is not None and result.error_category == "terminated"
    assert "stuck: a workflow task failed" in result.error.message and "broken" in result.error.message
    status = (await worker.context.client.get_workflow_handle(rollout).describe()).status
    assert status == WorkflowExecutionStatus.TERMINATED


async def test_an_attempt_that_is_stuck_after_its_report_does_not_hold_up_its_retry(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_WORKFLOW_STUCK_ATTEMPTS", "3")
    worker.options(stuck_after_sec=0, sweep_every_sec=0.3, sweep_after_sec=0)
    worker.provider.faults["play"] = [SandboxLostError("gone")]
    worker.provider.held = True
    job = await worker.submit(retry={"min_wait_sec": 0.01})
    (rollout,) = await worker.in_turn(1)
    await job.pause()
    worker.provider.release_all()
    await worker.progress(job, lambda p: len(p.run_again) == 1)
    client = worker.context.client
    await until(partial(has_ended, client, rollout))
    spec = job.spec.rollout(job.id, Origin(host_id=worker.context.host_id, job_dir=str(job.directory.root)), 0)
    async with Worker(client, task_queue="benchflow-broken", workflows=[BrokenRollout]):
        await client.start_workflow(
            "RolloutWorkflow", spec, id=rollout, task_queue="benchflow-broken", task_timeout=timedelta(seconds=1)
        )
        await job.unpause()
        (result,) = await worker.results(job)
    assert (result.status, result.attempt) == ("passed", 2)


async def has_ended(client: Client, workflow_id: str) -> bool:
    return (await client.get_workflow_handle(workflow_id).describe()).status != WorkflowExecutionStatus.RUNNING
