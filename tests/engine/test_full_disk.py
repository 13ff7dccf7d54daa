"""A disk that is full where results are written: reports and rows wait for space, and nothing is lost or glued."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker
from support.outages import filled, tmpfs
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus

from benchflow import messages
from benchflow.activities import job_activities as finishing
from benchflow.activities.lost_activities import LostActivities
from benchflow.contracts import temporal_names
from benchflow.contracts.activities import LostInput
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import JobSpec, Origin
from benchflow.contracts.lost_rollouts import LostRollout
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import DiskFullError, StoreAccessError
from benchflow.hosting.reporting import HostedReport
from benchflow.jobs.job_client import Job
from benchflow.messages import BulkCodec
from benchflow.results.summary import write_summary
from benchflow.store import Store
from benchflow.testing.waiting import until
from benchflow.workflow_executions import NOT_ENCODED
from benchflow.workflows.work_retries import ATTEMPTS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

GONE = Failure(type="RolloutTerminatedError", category="terminated", message="it ended without a result: unknown")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The disk of the jobs' directories, which is small."""
    place = tmp_path / "jobs"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m,mode=700", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def test_a_report_waits_for_space_longer_than_its_limit_and_has_one_whole_row(
    disk: Path, worker: InProcessWorker
) -> None:
    worker.options(retry_initial_sec=0.05, retry_max_sec=0.1, report_total_sec=2)
    async with reporting(disk, worker, repeats=2) as job:
        rollouts = [f"{job.id}/r/play/oracle/{number}" for number in range(2)]
        for rollout in rollouts:
            await until(lambda rollout=rollout: has_failed(job, rollout, 25))
        assert f"DiskFullError: {disk}" in str(await job.trouble(rollouts[0]))
    results = await worker.results(job)
    assert [(one.status, one.reward, one.error, one.attempt) for one in results] == [("passed", 1.0, None, 1)] * 2
    rows = [json.loads(line) for line in job.directory.results.read_text().splitlines()]
    assert sorted(row["workflow_id"] for row in rows) == rollouts
    for rollout in rollouts:
        assert [name for name in await worker.activities(rollout) if name.startswith("report")] == [
            temporal_names.REPORT
        ]


@asynccontextmanager
async def reporting(disk: Path, worker: InProcessWorker, repeats: int = 1) -> AsyncIterator[Job]:
    """Have a job whose rollouts are measured, and a full disk when they report, until the block is left."""
    worker.provider.holds_artifacts = True
    job = await worker.submit(repeats=repeats, concurrency=repeats)
    await until(lambda: worker.provider.collecting >= repeats)
    with filled(disk):
        worker.provider.holds_artifacts = False
        yield job


async def has_failed(job: Job, rollout: str, attempts: int) -> bool:
    """Return whether a rollout's report was attempted so often, each time on a full disk."""
    description = await job.engine.client.get_workflow_handle(rollout).describe()
    pending = description.raw_description.pending_activities
    return any(
        one.activity_type.name == temporal_names.REPORT
        and one.attempt > attempts
        and "DiskFullError" in str(one.last_failure)
        for one in pending
    )


async def test_a_cancelled_rollout_stops_waiting_for_space(disk: Path, worker: InProcessWorker) -> None:
    worker.options(retry_initial_sec=0.05, retry_max_sec=0.1, report_total_sec=2)
    async with reporting(disk, worker) as job:
        rollout = f"{job.id}/r/play/oracle/0"
        await until(lambda: has_failed(job, rollout, 2))
        await job.cancel()

        async def has_ended() -> bool:
            description = await job.engine.client.get_workflow_handle(rollout).describe()
            return description.status != WorkflowExecutionStatus.RUNNING

        await until(has_ended)
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None and result.error.phase == "report"


async def has_waited(job: Job) -> bool:
    """Return whether the job itself has failed at something often, each time for lack of space."""
    trouble = (progress := await job.progress()) and progress.trouble
    return trouble is not None and "DiskFullError" in trouble and int(trouble.split("attempt ")[1].split(":")[0]) > 5


@pytest.mark.parametrize("where", ["specification", "answer", "specification, which then fails for another reason"])
async def test_the_naming_of_rollouts_waits_for_space_longer_than_its_limit(
    worker: InProcessWorker, where: str
) -> None:
    # An outage is waited for also where nothing else is.
    total_sec = 0 if where == "specification" else 0.2
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.02, start_total_sec=total_sec)
    is_full, load, put = True, worker.context.load_job, BulkCodec._put
    faults = [OSError("not mounted yet")] * ATTEMPTS if "another" in where else []

    async def load_once_there_is_space(ref: ArtifactRef) -> JobSpec:
        if is_full:
            raise DiskFullError("the disk of the store is full")
        if faults:
            raise faults.pop()
        return await load(ref)

    async def put_once_there_is_space(codec: BulkCodec, payload: Payload) -> Payload:
        if is_full and payload.data.startswith(b'{"rollouts"'):
            raise DiskFullError("the disk of the store is full")
        return await put(codec, payload)

    if where != "answer":
        worker.patch.setattr(worker.context, "load_job", load_once_there_is_space)
    else:
        worker.patch.setattr(messages, "MAX_INLINE_BYTES", 500)
        worker.patch.setattr(BulkCodec, "_put", put_once_there_is_space)
    job = await worker.submit()
    await until(lambda: has_waited(job))
    is_full = False
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)


async def test_while_naming_waits_for_space_rollouts_are_cancelled_and_histories_bounded(
    worker: InProcessWorker,
) -> None:
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.02, start_total_sec=0.2)
    worker.options(history_limit=60, sweep_every_sec=0.1, sweep_after_sec=0, start_batch=1)
    is_full, load = False, worker.context.load_job

    async def load_where_there_is_space(ref: ArtifactRef) -> JobSpec:
        if is_full:
            raise DiskFullError("the disk of the store is full")
        return await load(ref)

    worker.patch.setattr(worker.context, "load_job", load_where_there_is_space)
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=1)
    (first,) = await worker.in_turn(1)
    is_full = True
    await job.set_concurrency(2)
    await worker.progress(job, lambda progress: "DiskFullError" in str(progress.trouble))
    waiting_run = (await job.handle.describe()).run_id

    async def has_continued() -> bool:
        return (await job.handle.describe()).run_id != waiting_run

    await until(has_continued)
    await worker.progress(job, lambda progress: "DiskFullError" in str(progress.trouble))
    await job.cancel_rollout(first)
    await worker.progress(job, lambda progress: progress.counts.cancelled == 1)
    is_full = False
    worker.provider.release_all()
    assert sorted(result.status for result in await worker.results(job)) == ["cancelled", "passed"]


@pytest.mark.long
@pytest.mark.parametrize("does_pass", [True, False], ids=["full", "refused"])
async def test_a_rollout_whose_command_finds_no_space_is_not_taken_for_stuck(
    worker: InProcessWorker, does_pass: bool
) -> None:
    """The SDK waits for the timeout of each task after the first that could not be encoded, which is 10 s."""
    worker.options(stuck_attempts=2, stuck_after_sec=0, sweep_every_sec=0.2, sweep_after_sec=0)
    is_full, put = False, BulkCodec._put

    async def put_once_there_is_space(codec: BulkCodec, payload: Payload) -> Payload:
        # What a workflow gives to an activity in the sandbox, and no answer of one.
        if is_full and b'"spec":' in payload.data and b'"sandbox":' in payload.data:
            raise DiskFullError("it is full") if does_pass else StoreAccessError("it can't be written")
        return await put(codec, payload)

    worker.patch.setattr(messages, "MAX_INLINE_BYTES", 500)
    worker.patch.setattr(BulkCodec, "_put", put_once_there_is_space)
    worker.provider.held = True
    job = await worker.submit()
    (rollout,) = await worker.in_turn(1)
    is_full = True
    worker.provider.release_all()
    assert NOT_ENCODED in str(await until(lambda: job.trouble(rollout)))
    if not does_pass:
        (result,) = await worker.results(job)
        assert result.error is not None and "StoreAccessError: it can't be written" in result.error.message
        return
    sweeps = len(await worker.activities(job.id))
    await until(lambda: has_swept(worker, job, sweeps + 3))
    assert (
        await worker.context.client.get_workflow_handle(rollout).describe()
    ).status == WorkflowExecutionStatus.RUNNING
    is_full = False
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)


async def has_swept(worker: InProcessWorker, job: Job, count: int) -> bool:
    return len(await worker.activities(job.id)) >= count


async def test_the_end_of_a_job_waits_for_space_longer_than_its_limit(worker: InProcessWorker) -> None:
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.02, report_total_sec=0.2)
    is_full = True

    def write_once_there_is_space(*given: Any) -> None:
        if is_full:
            raise DiskFullError("the disk of the results is full")
        write_summary(*given)

    worker.patch.setattr(finishing, "write_summary", write_once_there_is_space)
    job = await worker.submit()
    await until(lambda: has_waited(job))
    is_full = False
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)
    assert json.loads(job.directory.summary.read_text())["finished"] == 1


async def test_an_activity_runs_although_the_disk_takes_no_record_of_it(worker: InProcessWorker) -> None:
    """The record serves the next worker, should this one die: no reason to fail."""
    with tmpfs(worker.records.directory, 16 << 10), filled(worker.records.directory):
        (result,) = await worker.results(await worker.submit())
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)


async def test_a_row_that_cannot_be_added_runs_no_measured_rollout_again(
    worker: InProcessWorker, tmp_path: Path
) -> None:
    worker.provider.held = True
    job = await worker.submit(job_name="linked")
    await worker.in_turn(1)
    # Nothing is written through a link, and the job's end puts a file in its place.
    job.directory.results.symlink_to(tmp_path / "theirs")
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.attempt, result.error) == ("passed", 1.0, 1, None)
    rows = [json.loads(line) for line in job.directory.results.read_text().splitlines()]
    assert [(row["workflow_id"], row["reward"]) for row in rows] == [(result.workflow_id, 1.0)]
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("way", ["on the disk of the results", "beside it"])
async def test_the_row_of_a_lost_rollout_waits_for_space(disk: Path, worker: InProcessWorker, way: str) -> None:
    job = await worker.submit()
    (result,) = await worker.results(job)
    ref = await Store.open().put_bytes(job.spec.model_dump_json().encode())
    given = LostInput(
        job_id=job.id,
        job_name=job.name,
        spec=ref,
        origin=Origin(host_id=worker.context.host_id, job_dir=str(job.directory.root)),
        rollouts=[LostRollout(index=0, attempt=2, run_id="another")],
        failure=GONE,
    )
    lost = LostActivities(worker.context)
    with worker.patch.context() as patch, contextlib.ExitStack() as stack:
        if way == "beside it":

            async def full(*_: Any, **__: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(HostedReport, "write", full)
        else:
            stack.enter_context(filled(disk))
        with pytest.raises((DiskFullError, OSError), match=r"[Nn]o space left"):
            await lost.report_lost(given)
    (outcome,) = (await lost.report_lost(given)).outcomes
    assert (outcome.status, outcome.error) == ("errored", GONE)
    kept = Path(str(result.directory)) / "attempts" / "1" / "result.json"
    assert json.loads(kept.read_text())["rewards"] == {"reward": 1.0}
    assert [json.loads(line)["status"] for line in job.directory.results.read_text().splitlines()] == [
        "passed",
        "errored",
    ]
