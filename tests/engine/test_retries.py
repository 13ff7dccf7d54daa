"""A rollout is run again because of how it failed, from its root, so often and no more; what it left is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow import errors


def lost() -> errors.SandboxLostError:
    return errors.SandboxLostError("the sandbox is gone")


async def test_a_lost_sandbox_is_a_second_attempt_and_the_first_is_kept(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = [lost()]
    job = await worker.submit()
    (result,) = await worker.results(job)
    assert (result.status, result.attempt, result.error) == ("passed", 2, None)
    root = Path(str(result.directory))
    first = json.loads((root / "attempts" / "1" / "result.json").read_text())
    assert (first["status"], first["attempt"], first["rewards"]) == ("errored", 1, None)
    assert (first["error"]["type"], first["error"]["phase"]) == ("SandboxLostError", "execute")
    assert json.loads((root / "attempts" / "1" / "config.json").read_text())["attempt"] == 1
    assert json.loads((root / "config.json").read_text())["attempt"] == 2
    assert len((root / "trajectory" / "acp_trajectory.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in (root / "attempts").iterdir()] == ["1"]
    rows = job.directory.results.read_text().splitlines()
    assert [json.loads(row)["attempt"] for row in rows] == [2]


async def test_retries_end_and_the_last_error_stands(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = [lost() for _ in range(5)]
    job = await worker.submit(retry={"max_retries": 2, "min_wait_sec": 0.01})
    (result,) = await worker.results(job)
    assert (result.status, result.attempt, result.rewards) == ("errored", 3, None)
    assert result.error_category == "sandbox_lost"
    assert sum(worker.provider.turns.values()) == 3
    outcome = await job.handle.result()
    assert (outcome.counts.errored, outcome.counts.finished) == (1, 1)
    # Workflows answer also when they are over.
    progress, last = await job.progress(), await job.rollout_progress(job.spec.rollout_id(job.id, 0))
    assert progress is not None and last is not None
    assert [(ended.attempt, ended.status) for ended in progress.run_again] == [(1, "errored"), (2, "errored")]
    assert ([ended.attempt for ended in progress.recent], last.attempt) == ([3], 3)
    assert json.loads(job.directory.summary.read_text())["run_again"] == 1


@pytest.mark.parametrize(
    ("error", "retry", "turns"),
    [
        (errors.AgentError("lost its way"), {}, 1),
        (errors.UnsupportedFeatureError("cannot"), {}, 1),
        (lost(), {"max_retries": 0}, 1),
        (lost(), {"categories": ["agent"]}, 1),
        (errors.AgentError("lost its way"), {"categories": ["agent"]}, 2),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_the_category_of_the_error_decides_whether_it_is_worth_another_attempt(
    worker: InProcessWorker, error: Exception, retry: dict[str, Any], turns: int
) -> None:
    worker.provider.faults["play"] = [error]
    job = await worker.submit(retry={"min_wait_sec": 0.01} | retry)
    (result,) = await worker.results(job)
    assert result.attempt == turns
    assert sum(worker.provider.turns.values()) == turns
    assert result.status == ("errored" if turns == 1 else "passed")


@pytest.mark.long
async def test_a_fault_of_the_engine_is_named_as_such(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = [RuntimeError("a bug") for _ in range(3)]
    (result,) = await worker.results(await worker.submit())
    assert result.error is not None
    assert (result.error.category, result.error.message) == ("internal", "RuntimeError: a bug")


async def test_a_retry_does_not_hold_up_the_others(worker: InProcessWorker) -> None:
    """While one rollout waits for its next attempt, its place in the window is given to another."""
    worker.provider.faults["play"] = [lost()]
    worker.provider.held = True
    job = await worker.submit(repeats=4, concurrency=1, retry={"min_wait_sec": 1.5})
    (lost_one,) = await worker.in_turn(1)
    worker.provider.release(lost_one)
    await worker.begun(2)
    (next_one,) = worker.provider.in_turn
    progress = await worker.progress(job, lambda p: p.open == [next_one])
    assert (progress.waiting, progress.counts.errored) == (3, 0)
    worker.provider.release_all()
    results = await worker.results(job)
    assert sorted(result.attempt for result in results) == [1, 1, 1, 2]
    assert worker.provider.most_open == 1
    assert worker.provider.turns[lost_one] == 2 and next_one != lost_one


async def test_an_attempt_that_still_ends_when_its_retry_is_due_is_waited_for(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = [lost(), lost()]
    job = await worker.submit(retry={"min_wait_sec": 0})
    (result,) = await worker.results(job)
    assert (result.status, result.attempt) == ("passed", 3)
    assert sum(worker.provider.turns.values()) == 3


async def test_a_job_started_anew_hears_of_attempts_that_run_from_before(worker: InProcessWorker) -> None:
    """The job's own workflow was terminated while the second attempt of its rollout ran on."""
    worker.provider.faults["play"] = [lost()]
    worker.provider.held = True
    job = await worker.submit()
    worker.provider.release(*await worker.in_turn(1))
    await worker.progress(job, lambda p: p.open_count == 0 or worker.provider.turns.total() == 2)
    await worker.in_turn(1)
    await job.handle.terminate()
    again = await worker.submit()
    await worker.progress(again, lambda p: p.open_count == 1)
    worker.provider.release_all()
    (result,) = await worker.results(again)
    assert (result.status, result.attempt) == ("passed", 2)
    assert sum(worker.provider.turns.values()) == 2
