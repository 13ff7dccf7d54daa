"""Rollouts that are over before their end: sandboxes are removed, and rows say so.

Whatever runs beside them, also of another stack on this machine, goes on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.counted_task import SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack, engine_of
from support.local_world import free_subnet
from support.options import set_options
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    in_phase,
    rows,
    submit_job,
)
from support.worlds import Seen, everywhere

from benchflow.contracts.operator_options import WorkerOptions
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.testing.waiting import until


@pytest_asyncio.fixture
async def neighbour(stack: EmbeddedStack) -> AsyncIterator[EmbeddedStack]:
    """Another stack on this machine, whose worker reaps all the time."""
    root = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        set_options(patch, WorkerOptions(reap_every_sec=0.2))
        if stack.sandbox == "local":
            patch.setenv(SUBNET_VARIABLE, free_subnet(os.environ[SUBNET_VARIABLE]))
        made = EmbeddedStack(root, stack.sandbox)
        await made.start()
    yield made
    await made.close()
    shutil.rmtree(root)


@pytest.mark.long
@everywhere
async def test_what_is_over_goes_and_leaves_a_row_and_neighbours_leave_each_other_alone(
    often_swept: None, stack: EmbeddedStack, neighbour: EmbeddedStack, tmp_path: Path
) -> None:
    assert stack.id != neighbour.id
    with engine_of(neighbour):
        tasks = write_counted_tasks(tmp_path / "their-tasks", 2, stack.sandbox, held=[SOLVED])
        theirs = await submit_job(neighbour, tasks, tmp_path / "their-jobs")
    tasks = write_counted_tasks(tmp_path / "tasks", 3, stack.sandbox, held=[SOLVED])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    acting = {seen.workflow: seen for seen in await stack.in_step(SOLVED, 3)}
    their_acting = {seen.workflow: seen for seen in await neighbour.in_step(SOLVED, 2)}

    # A terminated workflow runs no code: a worker reaps from time to time, as theirs does,
    ours = belongings(stack)
    their_victim, their_other = sorted(await in_phase(theirs, "execute"))
    await theirs.engine.client.get_workflow_handle(their_victim).terminate("by an operator")
    await until(lambda: neighbour.world.sandboxes() == [their_acting[their_other]], every=0.1)
    assert belongings(stack) == ours

    # and when it starts, as ours. One that is cancelled ends by itself.
    before = belongings(neighbour)
    assert all(shared for _, shared in (ours, before))
    terminated, cancelled, other = sorted(await in_phase(job, "execute"))
    await job.cancel_rollout(cancelled)
    await until(lambda: {*stack.world.sandboxes()} == {acting[terminated], acting[other]}, every=0.1)
    await until(lambda: job.directory.results.exists() and rows(job))
    assert [(row["workflow_id"], row["status"], row["reward"]) for row in rows(job)] == [(cancelled, "cancelled", None)]
    await job.engine.client.get_workflow_handle(terminated).terminate("by an operator")
    stack.kill("worker")
    await until(lambda: stack.world.sandboxes() == [acting[other]], every=0.1)
    stack.let_go(SOLVED)
    await job.wait()
    assert {row["workflow_id"]: (row["status"], row["error_category"], row["reward"]) for row in rows(job)} == {
        cancelled: ("cancelled", "cancelled", None),
        terminated: ("errored", "terminated", None),
        other: ("passed", None, 1.0),
    }
    # The reaper frees the place of a sandbox when that is gone.
    await until(lambda: list(stack.paths.slots.iterdir()) == [])
    await assert_second_submit_does_nothing(job)

    again = await submit_job(stack, tasks, tmp_path / "jobs", again=("cancelled", "errored"))
    assert again.started == 2
    await stack.in_step(SOLVED, 2)
    stack.let_go(SOLVED)
    await again.wait()
    assert_each_scored_once(again, stack, with_earlier_runs=2)

    await assert_nothing_is_left(stack)
    assert belongings(neighbour) == before
    with engine_of(neighbour):
        assert await in_phase(theirs, "execute") == [their_other]
        neighbour.let_go(SOLVED)
        await theirs.wait()
        assert {row["workflow_id"]: row["reward"] for row in rows(theirs)} == {their_victim: None, their_other: 1.0}
        await assert_nothing_is_left(neighbour)


def belongings(stack: EmbeddedStack) -> tuple[set[Seen], set[str]]:
    return set(stack.world.sandboxes()), stack.world.shared()
