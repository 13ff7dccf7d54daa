"""Rollouts that are terminated or cancelled: agents stop, sandboxes go, rows say so, and they can be run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.counted_task import ENOUGH, SOLVE_SEC, SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    in_phase,
    rows,
    submit_job,
)
from support.worlds import Seen, seldom_on_docker

from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash


@seldom_on_docker
async def test_a_terminated_rollout_leaves_a_row_and_no_sandbox(
    often_swept: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, held=True)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(SOLVED, at_least=2))
    victim, other = sorted(await in_phase(job, "execute"))
    sandbox = next(it for it in stack.world.sandboxes() if it.workflow == victim)
    await job.engine.client.get_workflow_handle(victim).terminate("by an operator")
    # A worker reaps when it starts, and from time to time.
    stack.kill("worker")
    await until(lambda: _gone(stack, sandbox))
    stack.world.make_file(ENOUGH)
    await job.wait()
    found = {row["workflow_id"]: row for row in rows(job)}
    assert found.keys() == {victim, other}
    assert (found[victim]["status"], found[victim]["error_category"]) == ("errored", "terminated")
    assert found[victim]["reward"] is None
    assert (found[other]["status"], found[other]["reward"]) == ("passed", 1.0)
    # The reaper frees the place of a sandbox when that is gone.
    await until(lambda: _no_place_is_taken(stack))
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)


@seldom_on_docker
async def test_cancelled_rollouts_stop_and_can_be_run_again(
    stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOLVE_SEC, "600")
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox)
    job = await submit_job(stack, tasks, tmp_path / "jobs", concurrency=2)
    await until(lambda: stack.marked(SOLVED, at_least=2))
    one, _ = await in_phase(job, "execute")
    sandbox = next(it for it in stack.world.sandboxes() if it.workflow == one)
    await job.cancel_rollout(one)
    await until(lambda: _gone(stack, sandbox))
    await until(lambda: stack.marked(SOLVED, at_least=2))
    assert [(row["workflow_id"], row["status"], row["reward"]) for row in rows(job)] == [(one, "cancelled", None)]
    await job.cancel()
    await job.wait()
    assert stack.world.sandboxes() == []
    assert list(stack.paths.slots.iterdir()) == []
    assert [(row["status"], row["error_category"], row["reward"]) for row in rows(job)] == [
        ("cancelled", "cancelled", None)
    ] * 3
    monkeypatch.setenv(SOLVE_SEC, "0.2")
    again = await submit_job(stack, tasks, tmp_path / "jobs", again=("cancelled",))
    assert again.started == 4
    await again.wait()
    assert_each_scored_once(again, stack, with_earlier_runs=3)
    await assert_second_submit_does_nothing(again)
    assert_nothing_is_left(stack)


async def _gone(stack: EmbeddedStack, sandbox: Seen) -> bool:
    return sandbox not in stack.world.sandboxes()


async def _no_place_is_taken(stack: EmbeddedStack) -> bool:
    return list(stack.paths.slots.iterdir()) == []
