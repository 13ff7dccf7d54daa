"""A disk that is full where results are written: reports and rows wait for space, and nothing is lost or glued."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.outages import tmpfs
from support.theatre import Theatre

from benchflow.activities.lost import LostActivities
from benchflow.activities.report import ReportActivities
from benchflow.contracts import names
from benchflow.contracts.activities import LostInput, ReportResult
from benchflow.contracts.job import Origin
from benchflow.contracts.lost import LostRollout
from benchflow.contracts.rollout import Failure
from benchflow.errors import DiskFullError
from benchflow.store import Store
from benchflow.testing.waiting import until

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


def fill(disk: Path) -> Path:
    """Leave no byte of a disk free. Return the file to remove."""
    file = disk / "filler"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(65536)):
            pass
    return file


async def test_a_report_waits_for_space_and_has_one_whole_row(disk: Path, theatre: Theatre) -> None:
    theatre.options(retry_initial_sec=0.05, retry_max_sec=0.1)
    theatre.hall.held = True
    job = await theatre.submit(repeats=2, concurrency=2)
    rollouts = await theatre.in_turn(2)
    filler = fill(disk)
    theatre.hall.release_all()

    async def is_full() -> bool:
        troubles = [await job.trouble(rollout) for rollout in rollouts]
        return all(trouble is not None and "DiskFullError" in trouble for trouble in troubles)

    await until(is_full)
    filler.unlink()
    results = await theatre.results(job)
    assert [(one.status, one.reward, one.error, one.attempt) for one in results] == [("passed", 1.0, None, 1)] * 2
    rows = [json.loads(line) for line in job.directory.results.read_text().splitlines()]
    assert sorted(row["workflow_id"] for row in rows) == rollouts


async def test_an_activity_runs_although_the_disk_takes_no_record_of_it(theatre: Theatre) -> None:
    """The record serves the next worker, should this one die: no reason to fail."""
    with tmpfs(theatre.records.directory, 16 << 10):
        fill(theatre.records.directory)
        (result,) = await theatre.results(await theatre.submit())
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)


async def test_a_report_whose_next_attempt_would_be_too_late_is_tried_once_more(theatre: Theatre) -> None:
    """The server ends it with its last error then, and not with a timeout."""
    theatre.options(retry_initial_sec=5, report_total_sec=4)
    errors, write = [DiskFullError("the disk of the results is full")], ReportActivities.write

    async def write_once_there_is_space(*args: Any, **options: Any) -> ReportResult:
        if errors:
            raise errors.pop()
        return await write(*args, **options)

    theatre.patch.setattr(ReportActivities, "write", write_once_there_is_space)
    job = await theatre.submit()
    (result,) = await theatre.results(job)
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    reports = [name for name in await theatre.activities(f"{job.id}/r/play/oracle/0") if name.startswith("report")]
    assert reports == [names.REPORT, names.REPORT]


async def test_a_row_that_cannot_be_added_runs_no_measured_rollout_again(theatre: Theatre, tmp_path: Path) -> None:
    theatre.hall.held = True
    job = await theatre.submit(job_name="linked")
    await theatre.in_turn(1)
    # Nothing is written through a link, and the job's end puts a file in its place.
    job.directory.results.symlink_to(tmp_path / "theirs")
    theatre.hall.release_all()
    (result,) = await theatre.results(job)
    assert (result.status, result.reward, result.attempt, result.error) == ("passed", 1.0, 1, None)
    rows = [json.loads(line) for line in job.directory.results.read_text().splitlines()]
    assert [(row["workflow_id"], row["reward"]) for row in rows] == [(result.workflow_id, 1.0)]
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("way", ["on the disk of the results", "beside it"])
async def test_the_row_of_a_lost_rollout_waits_for_space(disk: Path, theatre: Theatre, way: str) -> None:
    job = await theatre.submit()
    (result,) = await theatre.results(job)
    ref = await Store.open().put_bytes(job.spec.model_dump_json().encode())
    given = LostInput(
        job_id=job.id,
        job_name=job.name,
        spec=ref,
        origin=Origin(host_id=theatre.context.host_id, job_dir=str(job.directory.root)),
        rollouts=[LostRollout(index=0, attempt=2, run_id="another")],
        failure=GONE,
    )
    report = ReportActivities(theatre.context)
    lost = LostActivities(theatre.context, report)
    with theatre.patch.context() as patch:
        if way == "beside it":

            async def full(*_: Any, **__: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(report, "write", full)
        else:
            fill(disk)
        with pytest.raises((DiskFullError, OSError), match=r"[Nn]o space left"):
            await lost.report_lost(given)
    (disk / "filler").unlink(missing_ok=True)
    (outcome,) = (await lost.report_lost(given)).outcomes
    assert (outcome.status, outcome.error) == ("errored", GONE)
    kept = Path(str(result.directory)) / "attempts" / "1" / "result.json"
    assert json.loads(kept.read_text())["rewards"] == {"reward": 1.0}
    assert [json.loads(line)["status"] for line in job.directory.results.read_text().splitlines()] == [
        "passed",
        "errored",
    ]
