"""A host that is lost with what is kept of rollouts: with portable checkpoints others go on, and not from the start."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.activities.reaper import Reaper
from benchflow.activities.worker_context import WorkerContext
from benchflow.paths import StatePaths
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.trajectories.stored import load_tree
from benchflow.worker import make_workers

OTHER = "benchflow-host-other"


@pytest.fixture(autouse=True)
def impatient(worker: InProcessWorker) -> None:
    # A worker that lives waits for work, and is given it soon: nobody has to ask when it was last heard of.
    worker.options(host_silent_sec=4, host_start_timeout_sec=1, heartbeat_timeout_sec=3)


@contextlib.asynccontextmanager
async def other_host(worker: InProcessWorker) -> AsyncIterator[WorkerContext]:
    """A host with files of its own, which has only the store in common with the worker's, and is lost in the end."""
    paths = StatePaths(worker.root / "other")
    client = await connect(worker.target)
    context = replace(worker.context, queue=OTHER, host_id="other", paths=paths, client=client)
    async with make_workers(context, worker.records, worker.ongoing_work())[1]:
        yield context


def pins(worker: InProcessWorker) -> list[str]:
    return [file.name for file in (worker.root / "state" / "store" / "pins").glob("bf-*")]


async def test_a_rollout_goes_on_from_its_last_portable_checkpoint(worker: InProcessWorker) -> None:
    worker.provider.elsewhere["play"] = [OTHER]
    worker.provider.held = True
    branch = {"policy": {"kind": "none"}, "checkpoint": "per_turn", "portable": True}
    async with other_host(worker) as other:
        job = await worker.submit(worker.stepped(), branch=branch)
        await worker.begun(1)
        worker.provider.release()
        await worker.begun(2)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.status, result.error) == ("passed", None)
    assert result.sandbox["provisions"] == 2
    assert "was lost in execute; it went on from n1" in result.warnings[0]
    # The step under way was begun twice, the one before it once.
    assert sum(worker.provider.turns.values()) == 4
    assert result.directory is not None
    events = load_tree(result.directory).trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    assert pins(worker) == []
    # What the lost host has of it goes when it is there again.
    assert list(worker.context.paths.checkpoints.glob("*.json")) == []
    assert len(list(other.paths.checkpoints.glob("*.json"))) == 2
    await Reaper(other).reap()
    assert list(other.paths.checkpoints.glob("*.json")) == []
    assert worker.provider.images == {}


@pytest.mark.parametrize("portable", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_children_whose_host_is_lost_are_run_elsewhere_if_others_have_their_checkpoint(
    worker: InProcessWorker, portable: bool
) -> None:
    worker.provider.elsewhere["play"] = [OTHER, OTHER, OTHER]
    worker.provider.held = True
    branch: dict[str, Any] = {"policy": {"kind": "after_steps", "steps": [2], "n": 2}, "portable": portable}
    async with other_host(worker):
        job = await worker.submit(worker.stepped(), branch=branch, retry={"max_retries": 0})
        for number in (1, 2):
            await worker.begun(number)
            worker.provider.release()
        await worker.begun(4)
        children = worker.provider.in_turn
        assert len(children) == 2
        worker.provider.release(children[0])

        async def has_ended() -> bool:
            events = await worker.events(job, "/r/play/oracle/0")
            return "EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED" in events

        await until(has_ended, seconds=60)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert worker.provider.turns[children[0]] == 1
    assert (result.status, result.reward) == ("passed", 1.0)
    assert result.directory is not None
    tree = load_tree(result.directory)
    value = tree.value
    assert value is not None
    if portable:
        assert (value.n, value.failed, worker.provider.turns[children[1]]) == (2, {}, 2)
        for leaf in tree.leaves:
            events = tree.trajectory(leaf.id)
            assert [event["type"] for event in events].count("user_message") == 3
    else:
        (failure,) = value.failed.values()
        assert (value.n, failure.type, worker.provider.turns[children[1]]) == (1, "HostLostError", 1)
        assert failure.key == "branch.portable"
    assert pins(worker) == []
