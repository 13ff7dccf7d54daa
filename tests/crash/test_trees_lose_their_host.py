"""A tree whose host is lost as it grows: another one, with sandboxes of its own, takes over from what is portable.

The shorter test of it is in engine/test_lost_checkpoints.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.counted_task import enough
from support.growing_task import assert_is_whole, branch_after, step, write_growing_task
from support.hosts import Host, cluster_server
from support.local_world import free_subnet
from support.options import set_options
from support.second_daemon import second_daemon
from support.worlds import everywhere

from benchflow.contracts.config import JobConfig
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.jobs import plan_job, submit
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.temporal import read_stack_id
from benchflow.testing.waiting import until


@pytest_asyncio.fixture
async def hosts(
    state_root: Path, sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts of a cluster that this process submits to."""
    results = tmp_path / "results"
    results.mkdir()
    async with contextlib.AsyncExitStack() as running:
        address = await running.enter_async_context(cluster_server())
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        monkeypatch.setenv("BENCHFLOW_STORE", str(tmp_path / "store"))
        own: list[dict[str, str]] = [{}, {}]
        if sandbox == "docker":
            own[1]["DOCKER_HOST"] = await running.enter_async_context(second_daemon())
        else:
            first = free_subnet()
            own = [{SUBNET_VARIABLE: first}, {SUBNET_VARIABLE: free_subnet(first)}]
        made = [
            Host(state_root / name, sandbox, results, variables)
            for name, variables in zip(("a", "b"), own, strict=True)
        ]
        for host in made:
            running.push_async_callback(host.close)
        yield made[0], made[1]


@pytest.mark.long
@everywhere
@pytest.mark.parametrize("divided", [[1], [0, 1]], ids=["once", "twice"])
async def test_another_host_takes_a_tree_over(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divided: list[int]
) -> None:
    """divided: after how many steps, of two."""
    lost, other = hosts
    # What makes a host count as lost within seconds, rather than minutes.
    set_options(monkeypatch, WorkflowOptions(heartbeat_timeout_sec=5, host_start_timeout_sec=1, host_silent_sec=5))
    config = JobConfig.model_validate(
        {
            "paths": [write_growing_task(tmp_path / "tasks", 2, held=[1])],
            "jobs_dir": tmp_path / "jobs",
            "job_name": "tree",
            "sandbox": lost.world.sandbox,
            "branch": branch_after(divided, portable=True),
        }
    )
    job = await submit(plan_job(config))
    stack = await read_stack_id(job.engine.client)
    lost.begin(stack)
    leaves = 2 ** len(divided)
    await until(lambda: len(lost.world.with_file(step(1))) == leaves, every=0.1)
    lost.end(signal.SIGKILL)
    assert await job.is_running()
    other.begin(stack)
    await until(lambda: len(other.world.with_file(step(1))) == leaves, every=0.1)
    other.world.make_file(enough(step(1)))
    await job.wait()

    (result,) = job.results()
    assert result.error is None, result.error
    assert (result.reward, result.reward_kind) == (1.0, "value")
    assert_is_whole(RolloutPaths(Path(str(result.directory))), 2, divided)
    await assert_nothing_is_left_of(other)
    # What the lost one still has is its own to remove, should it ever come back.
    assert lost.world.sandboxes() and lost.snapshots()
    lost.begin(stack)
    await assert_nothing_is_left_of(lost)


async def assert_nothing_is_left_of(host: Host) -> None:
    """Nothing that its worker would not remove at once; it ends."""
    await until(lambda: not host.world.sandboxes() and not host.snapshots(), every=0.1)
    host.end()

    async def has_nothing() -> bool:
        return not await host.world.leftovers()

    # The kernel takes some things away in its own time.
    await until(has_nothing, every=0.1)
