"""A worker dies, or a rollout ends, while a verifier has a sandbox of its own: verified once, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from support.counted_task import IN_THE_MIDDLE, VERIFIED, write_counted_tasks
from support.embedded import EmbeddedStack
from support.scored import (
    assert_nothing_is_left,
    assert_recovered_soon,
    assert_second_submit_does_nothing,
    in_phase,
    rows,
    submit_job,
)
from support.worlds import seldom_on_docker

from benchflow.errors import JobNotFoundError
from benchflow.jobs import Job
from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash


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


@seldom_on_docker
async def test_killed_while_verifiers_run_in_their_rooms(stack: EmbeddedStack, tmp_path: Path) -> None:
    times = {"solve_sec": 0.2, "verify_sec": IN_THE_MIDDLE}
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, in_clean_room=True, **times)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(VERIFIED, at_least=2))
    stack.kill("worker")
    await job.wait()
    assert_recovered_soon(job, "verify", IN_THE_MIDDLE, "worker killed in clean rooms, 2 rollouts")
    assert_each_verified_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)


@pytest.mark.soak
async def test_killed_while_rooms_are_made(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox, in_clean_room=True, setup_sec=1, solve_sec=0.2)
    job = await submit_job(stack, tasks, tmp_path / "jobs")

    async def one_more_than_rollouts() -> bool:
        return len(stack.world.sandboxes()) > 4

    await until(one_more_than_rollouts)
    stack.kill("worker")
    await job.wait()
    assert_each_verified_once(job, stack)
    assert_nothing_is_left(stack)


@seldom_on_docker
async def test_verifications_that_are_cancelled_or_terminated_leave_no_room(
    often_swept: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, in_clean_room=True, solve_sec=0.2, verify_sec=600)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(VERIFIED, at_least=2))
    first, second = await in_phase(job, "verify")
    await job.cancel_rollout(first)
    # One that is terminated runs no code of its own: a worker reaps when it starts.
    await job.engine.client.get_workflow_handle(second).terminate("by an operator")
    stack.kill("worker")

    async def all_gone() -> bool:
        return stack.world.sandboxes() == []

    await until(all_gone)
    # With both of its rollouts the job may have ended, too.
    with contextlib.suppress(JobNotFoundError):
        await job.cancel()
    await job.wait()

    async def no_place_is_taken() -> bool:
        return list(stack.paths.slots.iterdir()) == []

    # The reaper frees the place of a sandbox when that is gone.
    await until(no_place_is_taken)
    assert_nothing_is_left(stack)


@seldom_on_docker
@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.soak)])
async def test_rollouts_that_are_cancelled_at_any_moment_leave_no_room_and_nothing_for_it(
    stack: EmbeddedStack, tmp_path: Path, rounds: int
) -> None:
    seed = int(os.environ.get("BENCHFLOW_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"\nBENCHFLOW_TEST_SEED={seed}")
    chance = random.Random(seed)
    times = {"setup_sec": 0.3, "solve_sec": 0.1, "verify_sec": 0.5}
    tasks = write_counted_tasks(tmp_path / "tasks", 3, stack.sandbox, in_clean_room=True, **times)
    for number in range(rounds):
        started = len(stack.world.started)
        job = await submit_job(stack, tasks, tmp_path / "jobs", f"crash-{number}")

        async def has_begun(before: int = started) -> bool:
            return len(stack.world.started) > before

        await until(has_begun)
        for rollout in [rollout for progress in [await job.progress()] if progress for rollout in progress.open]:
            # Not a wait for anything: the moment is what is random.
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            # At some moments the job itself is over, and says so.
            with contextlib.suppress(JobNotFoundError):
                await job.cancel_rollout(rollout)
        await job.wait()
    assert stack.world.sandboxes() == []
    assert [*(tmp_path / "jobs").rglob("evidence/room")] == []
    assert_nothing_is_left(stack)
