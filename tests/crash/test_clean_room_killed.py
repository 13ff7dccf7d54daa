"""A worker dies, or a rollout ends, while a verifier has a sandbox of its own: verified once, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest
from support.counted_task import SETUP, VERIFIED, write_counted_tasks
from support.embedded import EmbeddedStack, chance_of_this_run
from support.scored import (
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    finish,
    in_phase,
    rows,
    submit_job,
)
from support.worlds import everywhere

from benchflow.errors import JobNotFoundError
from benchflow.jobs import Job
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.long, everywhere]


def assert_each_verified_once(job: Job, stack: EmbeddedStack) -> None:
    """Of what a verifier counts, its own line is in the room alone: a second room would have begun with none."""
    assert [(row["status"], row["reward"], row["error"]) for row in rows(job)] == [
        ("passed", 1.0, None)
    ] * job.spec.total
    assert {result.sandbox["provisions"] for result in job.results()} == {1}
    # Beside sandboxes there are those in which the local provider builds an image.
    started = Counter(name for name in stack.world.started if name.startswith("bf-"))
    assert len(started) == 2 * job.spec.total
    assert {*started.values()} == {1}, started


async def test_killed_while_verifiers_run_in_their_rooms(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, in_clean_room=True, held=[VERIFIED])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    first, second = await stack.in_step(VERIFIED, 2)
    victims = stack.kill("worker")
    # One room ends while nobody listens, the other when the next worker does.
    stack.let_go(VERIFIED, [first])
    await stack.worker(other_than=victims)
    stack.let_go(VERIFIED, [second])
    await finish(job)
    assert_each_verified_once(job, stack)
    await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


async def test_killed_while_rooms_are_made(handed_over: None, stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox, in_clean_room=True, held=[SETUP])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    rollouts = await stack.in_step(SETUP, 4)
    stack.let_go(SETUP)
    # A room is set up, too.
    await until(lambda: [*{*stack.world.with_file(SETUP)} - {*rollouts}], every=0.1)
    stack.kill("worker")

    def all_go_on() -> bool:
        stack.let_go(SETUP)
        return len(job.results()) == 4

    await until(all_go_on, every=0.5)
    await finish(job)
    assert_each_verified_once(job, stack)
    await assert_nothing_is_left(stack)


async def test_verifications_that_are_cancelled_or_terminated_leave_no_room(
    often_swept: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, in_clean_room=True, held=[VERIFIED])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await stack.in_step(VERIFIED, 2)
    first, second = await in_phase(job, "verify")
    await job.cancel_rollout(first)
    # One that is terminated runs no code of its own: a worker reaps when it starts.
    await job.engine.client.get_workflow_handle(second).terminate("by an operator")
    stack.kill("worker")

    await until(lambda: stack.world.sandboxes() == [], every=0.1)
    # With both of its rollouts the job may have ended, too.
    with contextlib.suppress(JobNotFoundError):
        await job.cancel()
    await job.wait()
    # The reaper frees the place of a sandbox when that is gone.
    await until(lambda: list(stack.paths.slots.iterdir()) == [])
    await assert_nothing_is_left(stack)


async def test_rollouts_that_are_cancelled_at_any_moment_leave_no_room_and_nothing_for_it(
    stack: EmbeddedStack, tmp_path: Path
) -> None:
    chance = chance_of_this_run()
    times = {"setup_sec": 0.3, "solve_sec": 0.1, "verify_sec": 0.5}
    tasks = write_counted_tasks(tmp_path / "tasks", 3, stack.sandbox, in_clean_room=True, **times)
    for number in range(6):
        started = len(stack.world.started)
        job = await submit_job(stack, tasks, tmp_path / "jobs", f"crash-{number}")
        await until(lambda before=started: len(stack.world.started) > before)  # type: ignore[misc]
        for rollout in [rollout for progress in [await job.progress()] if progress for rollout in progress.open]:
            # Not a wait for anything: the moment is what is random.
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            # At some moments the job itself is over, and says so.
            with contextlib.suppress(JobNotFoundError):
                await job.cancel_rollout(rollout)
        await job.wait()
    assert stack.world.sandboxes() == []
    assert [*(tmp_path / "jobs").rglob("evidence/room")] == []
    await assert_nothing_is_left(stack)
