"""kill -9 of the worker in each phase, and SIGTERM: the next worker goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.counted_task import IN_THE_MIDDLE, SETUP, SOLVED, VERIFIED, write_counted_task, write_counted_tasks
from support.embedded import EmbeddedStack
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_recovered_soon,
    assert_second_submit_does_nothing,
    in_phase,
    submit_job,
)
from support.worlds import Seen, seldom_on_docker, seldom_on_local

from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash


@seldom_on_docker
async def test_killed_during_a_build(stack: EmbeddedStack, tmp_path: Path) -> None:
    task = write_counted_task(tmp_path, "built", stack.sandbox, build_sec=IN_THE_MIDDLE, solve_sec=0.2)
    mark = (task / "environment" / "Dockerfile").read_text().split()[3]
    try:
        job = await submit_job(stack, [task], tmp_path / "jobs", repeats=2)

        async def building() -> list[Seen]:
            return stack.world.builds(mark)

        abandoned = await until(building)
        assert await in_phase(job, "provision")
        stack.kill("worker")
        await job.wait()
        assert not {*abandoned} & {*stack.world.builds(mark)}
        assert_recovered_soon(job, "provision", IN_THE_MIDDLE, "worker killed in a build")
        assert_each_scored_once(job, stack)
        await assert_second_submit_does_nothing(job)
        assert_nothing_is_left(stack)

        async def no_build_is_left() -> bool:
            return stack.world.builds(mark) == []

        # A daemon gives up a build whose client is gone in its own time.
        await until(no_build_is_left)
    finally:
        stack.world.remove_built(mark)


@seldom_on_docker
async def test_killed_during_setup_commands(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, setup_sec=IN_THE_MIDDLE, solve_sec=0.2)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(SETUP))
    assert await in_phase(job, "provision")
    stack.kill("worker")
    await job.wait()
    assert_recovered_soon(job, "provision", IN_THE_MIDDLE, "worker killed in setup commands")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)


@seldom_on_docker
async def test_killed_while_agents_act(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox, solve_sec=IN_THE_MIDDLE)
    job = await submit_job(stack, tasks, tmp_path / "jobs", concurrency=4)
    await until(lambda: stack.marked(SOLVED, at_least=3))
    assert await in_phase(job, "execute")
    victim = await stack.worker()
    stack.kill("worker")
    records = [*stack.paths.running.glob(f"{victim}-*/*.token")]
    assert len(records) >= 3
    # What a worker is given a moment before it can write it down, only the server knows.
    records[0].unlink()
    await job.wait()
    assert not any(stack.paths.running.glob(f"{victim}-*"))
    assert_recovered_soon(job, "execute", IN_THE_MIDDLE, "worker killed in execute, 4 rollouts")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)


@seldom_on_local
async def test_killed_while_verifiers_run(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, solve_sec=0.2, verify_sec=IN_THE_MIDDLE)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(VERIFIED, at_least=2))
    assert await in_phase(job, "verify")
    stack.kill("worker")
    await job.wait()
    assert_recovered_soon(job, "verify", IN_THE_MIDDLE, "worker killed in verify, 2 rollouts")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)


@seldom_on_docker
async def test_told_to_stop_twice(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(SOLVED, at_least=2))
    first = stack.kill("worker", with_signal=signal.SIGTERM)
    await stack.worker(other_than=first)
    stack.kill("worker", with_signal=signal.SIGTERM)
    await job.wait()
    assert_recovered_soon(job, "execute", 3, "worker told to stop twice, 4 rollouts")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)
