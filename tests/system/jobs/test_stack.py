"""The embedded stack as its users meet it: one for all, gone when told or when idle, back when asked for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from support.docker_world import solving
from support.running import job_config
from support.task_writer import write_task

from benchflow import stack
from benchflow.errors import ConfigError, StackError
from benchflow.jobs import open_job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.temporal import Target, connect
from benchflow.testing.waiting import until

WAITS = "until [ -e /root/go ]; do sleep 0.05; done; echo done > /root/answer\n"


@pytest.fixture
def own(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatePaths]:
    """A stack of this test's own, which is not to be started yet; whatever runs of it in the end is stopped."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    paths = StatePaths(state)
    yield paths
    stack.stop_stack(paths)


def test_it_is_one_for_all_who_ask_and_ends_when_told_and_when_nobody_uses_it(
    own: StatePaths, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = stack.find_free_port()
    monkeypatch.setenv(stack.PORT_VARIABLE, str(port))
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda _: stack.ensure_stack(own), range(4)))
    assert len({record.supervisor.pid for record in records}) == 1
    assert records[0].ui_port in stack.PORTS
    # On a port that was asked for, everybody reaches it, and that is said.
    assert (records[0].address, records[0].exposure) == (f"127.0.0.1:{port}", "BENCHFLOW_STACK_PORT is set")
    assert asyncio.run(connect(Target(f"127.0.0.1:{port}"))).namespace == "benchflow"
    monkeypatch.delenv(stack.PORT_VARIABLE)
    assert stack.find_running(own) is not None
    assert stack.stop_stack(own)
    assert stack.find_running(own) is None
    assert not stack.stop_stack(own)
    # One that was started beside the first, and is slow, comes only now.
    late = [sys.executable, "-m", "benchflow.supervisor"]
    subprocess.run(late, env=os.environ | {"BENCHFLOW_STATE_DIR": str(state)}, check=True, timeout=300)
    assert stack.find_running(own) is None

    monkeypatch.setenv("BENCHFLOW_STACK_IDLE_SEC", "1")
    again = stack.ensure_stack(own)
    assert again.ui == records[0].ui
    assert again.supervisor != records[0].supervisor
    asyncio.run(until(lambda: not again.supervisor.alive))
    assert again.server is not None and not again.server.alive


def test_options_that_its_worker_could_not_read_are_refused_before_it_starts(
    own: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_WORKER_REAP_EVERY_SEC", "soon")
    with pytest.raises(ConfigError) as caught:
        stack.ensure_stack(own)
    assert caught.value.key == "BENCHFLOW_WORKER_REAP_EVERY_SEC"
    assert stack.find_running(own) is None


@pytest.mark.long
@pytest.mark.docker
async def test_who_waits_for_a_job_is_told_when_the_stack_is_stopped_and_can_come_back(
    own: StatePaths, tmp_path: Path
) -> None:
    task, name = write_task(tmp_path, solve=WAITS), f"outlives-{os.getpid()}"
    job = await submit(plan_job(job_config([task], tmp_path / "jobs", job_name=name, sandbox="docker")))
    waiting = asyncio.create_task(job.wait())
    client = docker.from_env()
    (container,) = await until(lambda: solving(client, name))
    await asyncio.to_thread(stack.stop_stack, own)
    with pytest.raises(StackError, match="was stopped"):
        await asyncio.wait_for(waiting, 300)
    assert stack.find_running(own) is None
    again = await open_job(name, tmp_path / "jobs")
    container.exec_run("touch /root/go")
    client.close()
    await again.wait()
    assert [(result.reward, result.attempt) for result in again.results()] == [(1.0, 1)]
