"""The server, server and worker together, and the supervisor of both end while agents act."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from support.counted_task import SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    finish,
    in_phase,
    submit_job,
)
from support.worlds import seldom_on_docker, seldom_on_local

from benchflow import stack as stacks
from benchflow.jobs import Job

pytestmark = pytest.mark.usefixtures("handed_over")


async def while_agents_act(stack: EmbeddedStack, tmp_path: Path) -> Job:
    """Return a job with two agents, each in the middle of its turn."""
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, held=[SOLVED])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await stack.in_step(SOLVED, 2)
    assert len(await in_phase(job, "execute")) == 2
    return job


async def assert_ends_as_if_nothing_had_happened(job: Job, stack: EmbeddedStack, address: str) -> None:
    await finish(job)
    # Whoever else was connected finds the server where it was.
    assert stacks.ensure_stack().address == address
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


@seldom_on_local
async def test_agents_act_on_while_the_server_dies_alone_and_with_the_worker(
    stack: EmbeddedStack, tmp_path: Path
) -> None:
    job = await while_agents_act(stack, tmp_path)
    address = stacks.ensure_stack().address
    first, second = await stack.in_step(SOLVED, 2)
    stack.kill("server")
    # One agent ends while there is no server, the other while there is no worker either.
    stack.let_go(SOLVED, [first])
    # Without what encloses it, a server is reached by nobody: both begin anew.
    await stack.strike("enclosure")
    await stack.strike("server", "worker")
    stack.let_go(SOLVED, [second])
    await assert_ends_as_if_nothing_had_happened(job, stack, address)


@seldom_on_docker
async def test_agents_act_on_while_the_supervisor_is_killed_and_told_to_stop(
    stack: EmbeddedStack, tmp_path: Path
) -> None:
    job = await while_agents_act(stack, tmp_path)
    address = stacks.ensure_stack().address
    # Nobody but who waits for the job starts another supervisor.
    watching = asyncio.create_task(finish(job))
    for how in (signal.SIGKILL, signal.SIGTERM):
        before = stack.processes("worker")
        await stack.strike("supervisor", with_signal=how)
        await stack.worker(other_than=before)
    stack.let_go(SOLVED)
    await watching
    await assert_ends_as_if_nothing_had_happened(job, stack, address)
