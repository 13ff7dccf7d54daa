"""The server, server and worker together, and their supervisor end while agents act."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.counted_task import IN_THE_MIDDLE, SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack, Role
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_recovered_soon,
    assert_second_submit_does_nothing,
    in_phase,
    submit_job,
)
from support.worlds import seldom_on_docker, seldom_on_local

from benchflow import stack as stacks
from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash


@seldom_on_local
@pytest.mark.parametrize(
    "victims",
    # The server alone dies in every run under an agent that talks, too.
    [pytest.param(("server",), marks=pytest.mark.soak), ("server", "worker")],
    ids=["server", "server-and-worker"],
)
async def test_agents_act_on_while_the_server_dies(
    stack: EmbeddedStack, tmp_path: Path, victims: tuple[Role, ...]
) -> None:
    await act_on(stack, tmp_path, victims, signal.SIGKILL)


@seldom_on_docker
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told-to-stop"])
async def test_agents_act_on_while_the_supervisor_ends(
    stack: EmbeddedStack, tmp_path: Path, how: signal.Signals
) -> None:
    await act_on(stack, tmp_path, ("supervisor",), how)


async def act_on(stack: EmbeddedStack, tmp_path: Path, victims: tuple[Role, ...], how: signal.Signals) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, solve_sec=IN_THE_MIDDLE)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(SOLVED, at_least=2))
    assert await in_phase(job, "execute")
    address = stacks.ensure().address
    assert stack.kill(*victims, with_signal=how)
    await job.wait()
    # Whoever else was connected finds the server where it was.
    assert stacks.ensure().address == address
    assert_recovered_soon(job, "execute", IN_THE_MIDDLE, f"{how.name} of {' and '.join(victims)} in execute")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)
