"""A tree whose host is lost as it grows: another one, with sandboxes of its own, takes over from what is portable."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.hosts import Host, cluster_server
from support.local_world import free_subnet
from support.packages import changed_package
from support.second_daemon import second_daemon
from test_trees_killed import CHILDREN, assert_is_whole, write_growing_task

from benchflow.contracts.config import JobConfig
from benchflow.jobs import plan_job, submit
from benchflow.paths import RolloutPaths
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.temporal import stack_id
from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash

SOON = (
    ("HEARTBEAT_TIMEOUT = timedelta(seconds=60)", "HEARTBEAT_TIMEOUT = timedelta(seconds=6)"),
    ("HEARTBEAT_EVERY = 3.0", "HEARTBEAT_EVERY = 1.0"),
    ("HOST_START_TIMEOUT = timedelta(minutes=5)", "HOST_START_TIMEOUT = timedelta(seconds=2)"),
    ("HOST_SILENT_SEC = 120.0", "HOST_SILENT_SEC = 10.0"),
)
"""What makes a host count as lost within seconds, rather than minutes."""


@pytest_asyncio.fixture
async def hosts(
    state_root: Path, sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts of a cluster that this process submits to."""
    worker = changed_package(tmp_path / "package", "workflows/options.py", *SOON)
    results = tmp_path / "results"
    results.mkdir()
    with contextlib.ExitStack() as running:
        address = await asyncio.to_thread(running.enter_context, cluster_server())
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        monkeypatch.setenv("BENCHFLOW_STORE", str(tmp_path / "store"))
        own: list[dict[str, str]] = [{}, {}]
        if sandbox == "docker":
            own[1]["DOCKER_HOST"] = await asyncio.to_thread(running.enter_context, second_daemon())
        else:
            first = free_subnet()
            own = [{SUBNET_VARIABLE: first}, {SUBNET_VARIABLE: free_subnet(first)}]
        made = [
            Host(state_root / name, sandbox, worker, results, variables)
            for name, variables in zip(("a", "b"), own, strict=True)
        ]
        for host in made:
            running.callback(host.close)
        yield made[0], made[1]


@pytest.mark.soak
async def test_another_host_takes_a_tree_over(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    lost, other = hosts
    config = JobConfig.model_validate(
        {
            "paths": [write_growing_task(tmp_path / "tasks")],
            "jobs_dir": tmp_path / "jobs",
            "job_name": "tree",
            "sandbox": lost.world.sandbox,
            "branch": {
                "policy": {"kind": "after_steps", "steps": [0, 1, 2], "n": CHILDREN[0]},
                "max_depth": 3,
                "portable": True,
            },
        }
    )
    job = await submit(plan_job(config))
    stack = await stack_id(job.engine.client)
    lost.begin(stack)

    async def has_grandchildren() -> bool:
        return any(lost.paths.rollouts.glob("*/*/children/*/children/*"))

    await until(has_grandchildren, seconds=300)
    lost.end(signal.SIGKILL)
    assert await job.is_running()
    other.begin(stack)
    await job.wait()

    (result,) = job.results()
    assert result.error is None, result.error
    assert (result.reward, result.reward_kind) == (1.0, "value")
    assert_is_whole(RolloutPaths(Path(str(result.directory))))
    assert other.world.started
    await assert_nothing_is_left_of(other)
    # What the lost one still has is its own to remove, should it ever come back.
    assert lost.world.sandboxes() and lost.snapshots()
    lost.begin(stack)
    await assert_nothing_is_left_of(lost)


async def assert_nothing_is_left_of(host: Host) -> None:
    """Nothing that its worker would not remove at once; it ends."""

    async def keeps_nothing() -> bool:
        return not host.world.sandboxes() and not host.snapshots()

    await until(keeps_nothing)
    host.end()

    async def has_nothing() -> bool:
        # The kernel takes some things away in its own time.
        return not host.world.leftovers()

    await until(has_nothing)
