"""A host that is lost with what is kept of rollouts: with portable checkpoints others go on, and not from the start."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.theatre import Theatre

from benchflow.activities.reaper import Reaper
from benchflow.activities.worker_context import WorkerContext
from benchflow.paths import StatePaths
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.trajectories.stored import load_tree
from benchflow.worker import make_workers

OTHER = "benchflow-host-other"


@pytest.fixture(autouse=True)
def impatient(theatre: Theatre) -> None:
    # A worker that lives waits for work, and is given it soon: nobody has to ask when it was last heard of.
    theatre.options(host_silent_sec=4, host_start_timeout_sec=1, heartbeat_timeout_sec=3)


@contextlib.asynccontextmanager
async def other_host(theatre: Theatre) -> AsyncIterator[WorkerContext]:
    """A host with files of its own, which has only the store in common with the theatre's, and is lost in the end."""
    paths = StatePaths(theatre.root / "other")
    client = await connect(theatre.target)
    context = replace(theatre.context, queue=OTHER, host_id="other", paths=paths, client=client)
    async with make_workers(context, theatre.records, theatre.ongoing_work())[1]:
        yield context


def pins(theatre: Theatre) -> list[str]:
    return [file.name for file in (theatre.root / "state" / "store" / "pins").glob("bf-*")]


async def test_a_rollout_goes_on_from_its_last_portable_checkpoint(theatre: Theatre) -> None:
    theatre.hall.elsewhere["play"] = [OTHER]
    theatre.hall.held = True
    branch = {"policy": {"kind": "none"}, "checkpoint": "per_turn", "portable": True}
    async with other_host(theatre) as other:
        job = await theatre.submit(theatre.stepped(), branch=branch)
        await theatre.begun(1)
        theatre.hall.release()
        await theatre.begun(2)
    theatre.hall.release_all()
    (result,) = await theatre.results(job)
    assert (result.status, result.error) == ("passed", None)
    assert result.sandbox["provisions"] == 2
    assert "was lost in execute; it went on from n1" in result.warnings[0]
    # The step under way was begun twice, the one before it once.
    assert sum(theatre.hall.turns.values()) == 4
    assert result.directory is not None
    events = load_tree(result.directory).trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    assert pins(theatre) == []
    # What the lost host has of it goes when it is there again.
    assert list(theatre.context.paths.checkpoints.glob("*.json")) == []
    assert len(list(other.paths.checkpoints.glob("*.json"))) == 2
    await Reaper(other).reap()
    assert list(other.paths.checkpoints.glob("*.json")) == []
    assert theatre.hall.images == {}


@pytest.mark.parametrize("portable", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_children_whose_host_is_lost_are_run_elsewhere_if_others_have_their_checkpoint(
    theatre: Theatre, portable: bool
) -> None:
    theatre.hall.elsewhere["play"] = [OTHER, OTHER, OTHER]
    theatre.hall.held = True
    branch: dict[str, Any] = {"policy": {"kind": "after_steps", "steps": [2], "n": 2}, "portable": portable}
    async with other_host(theatre):
        job = await theatre.submit(theatre.stepped(), branch=branch, retry={"max_retries": 0})
        for number in (1, 2):
            await theatre.begun(number)
            theatre.hall.release()
        await theatre.begun(4)
        children = theatre.hall.in_turn
        assert len(children) == 2
        theatre.hall.release(children[0])

        async def has_ended() -> bool:
            events = await theatre.events(job, "/r/play/oracle/0")
            return "EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED" in events

        await until(has_ended, seconds=60)
    theatre.hall.release_all()
    (result,) = await theatre.results(job)
    assert theatre.hall.turns[children[0]] == 1
    assert (result.status, result.reward) == ("passed", 1.0)
    assert result.directory is not None
    tree = load_tree(result.directory)
    value = tree.value
    assert value is not None
    if portable:
        assert (value.n, value.failed, theatre.hall.turns[children[1]]) == (2, {}, 2)
        for leaf in tree.leaves:
            events = tree.trajectory(leaf.id)
            assert [event["type"] for event in events].count("user_message") == 3
    else:
        (failure,) = value.failed.values()
        assert (value.n, failure.type, theatre.hall.turns[children[1]]) == (1, "HostLostError", 1)
        assert failure.key == "branch.portable"
    assert pins(theatre) == []
