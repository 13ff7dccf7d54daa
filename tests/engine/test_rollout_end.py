"""A rollout whose own code raises: it is reported with what was measured, torn down, and its job is notified."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.contracts.activities import ReportResult
from benchflow.contracts.rollout_records import RolloutTree, StepOutcome
from benchflow.errors import DaemonUnavailableError, TaskError
from benchflow.hosting.reporting import HostedReport


async def test_an_error_of_the_engine_in_the_report_leaves_a_row_with_the_measured_reward(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: RolloutTree) -> RolloutTree:
        raise KeyError("broken")

    # Contracts are shared with the workflow's sandbox.
    monkeypatch.setattr(RolloutTree, "without_checkpoints", broken)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}
    job = await worker.submit(worker.stepped(2), branch=branch, retry={"max_retries": 0})
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("KeyError", "internal")
    assert not worker.provider.open and worker.provider.images == {}


async def test_an_error_of_the_engine_in_the_work_is_reported_and_torn_down(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(outcome: StepOutcome, **values: object) -> None:
        raise AssertionError("broken")

    monkeypatch.setattr(StepOutcome, "__init__", broken)
    job = await worker.submit(retry={"max_retries": 0})
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("AssertionError", "internal")
    assert not worker.provider.open


@pytest.mark.parametrize("reward", [b"1.0", b"0.5"])
async def test_a_rollout_whose_result_cannot_be_written_is_errored(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch, reward: bytes
) -> None:
    """On its sandbox's host, and on any other one: a score must have a result that shows where it came from."""

    async def refuse(report: HostedReport) -> ReportResult:
        raise TaskError("it cannot be written")

    monkeypatch.setattr(HostedReport, "write", refuse)
    worker.provider.reward = reward
    job = await worker.submit(retry={"max_retries": 0})
    await job.wait()
    outcome = await job.engine.client.get_workflow_handle(job.id + "/r/play/oracle/0").result()
    assert (outcome["status"], outcome["rewards"]) == ("errored", None)
    assert (outcome["error"]["type"], outcome["error"]["phase"]) == ("TaskError", "report")
    assert not worker.provider.open


async def test_a_result_lies_in_directories_whose_names_survive_a_power_cut(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    job = await worker.submit()
    (result,) = await worker.results(job)
    rollout = Path(str(result.directory))
    assert synced[synced.index(rollout) + 1] == rollout.parent
    assert job.directory.root.parent in synced


async def test_checkpoints_that_cannot_be_released_keep_no_rollout_open(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the daemon of their host is away, which is no limit of attempts."""

    async def away(prefix: str) -> None:
        raise DaemonUnavailableError("no Docker daemon answers")

    worker.options(teardown_total_sec=1)
    monkeypatch.setattr(worker.provider, "remove_snapshots", away)
    branch = {"policy": {"kind": "none"}, "checkpoint": "per_turn"}
    job = await worker.submit(worker.stepped(2), branch=branch)
    async with asyncio.timeout(20):
        (result,) = await worker.results(job)
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    assert not worker.provider.open
