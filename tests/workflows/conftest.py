"""A Temporal server for these tests, and a worker inside the test's own process, with a provider it controls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from hall import Hall
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from theatre import Theatre, until

from benchflow.activities.boundary import RunningActivities
from benchflow.contracts import names
from benchflow.errors import ServerUnavailableError
from benchflow.jobs import Job
from benchflow.paths import StatePaths
from benchflow.planes import sandbox
from benchflow.store import Store
from benchflow.supervisor import temporal_binary
from benchflow.temporal import Target, connect
from benchflow.worker import make_context, make_workers


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a Temporal server in memory, without any worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [temporal_binary(), "server", "start-dev", "--headless", "--port", str(port), "--log-level", "error"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
    command += [f"--search-attribute={name}=Keyword" for name in names.KEYWORD_ATTRIBUTES]
    command += [f"--search-attribute={name}=Double" for name in names.DOUBLE_ATTRIBUTES]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"127.0.0.1:{port}"
    asyncio.run(until(lambda: _answers(address)))
    yield address
    process.terminate()
    process.wait(60)


async def _answers(address: str) -> bool:
    try:
        await connect(Target(address, "default", embedded=False))
    except ServerUnavailableError:
        return False
    return True


@pytest.fixture
async def theatre(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Theatre]:
    """A worker on the server for the time of a test; what the test leaves open is terminated."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", server)
    monkeypatch.delenv("BENCHFLOW_STORE", raising=False)
    # How soon a cancelled activity hears of it.
    monkeypatch.setattr("benchflow.activities.boundary.HEARTBEAT_EVERY", 0.1)
    monkeypatch.setattr("benchflow.worker.HEARTBEAT_EVERY", 0.1)
    hall = Hall()
    monkeypatch.setitem(sandbox._made, "hall", hall)
    target = Target(server, "default", embedded=False)
    client = await connect(target)
    paths = StatePaths.default()
    context = await make_context(client, paths, Store.open())
    records = RunningActivities(paths.running, "host")
    records.open()
    async with contextlib.AsyncExitStack() as running:
        for worker in make_workers(context, records):
            await running.enter_async_context(worker)
        made = Theatre(hall, tmp_path, target, context, records)
        yield made
        hall.release_all()
        await until(lambda: _terminate_all(client, made.jobs))


async def _terminate_all(client: Client, jobs: Sequence[Job]) -> bool:
    """Whether nothing is open any more, so that the next test's worker has only its own work."""
    found = [execution.id async for execution in client.list_workflows('ExecutionStatus="Running"')]
    # What has just begun may not be listed yet.
    for job in jobs:
        known = [job.id, *(job.spec.rollout_id(job.id, index) for index in range(job.spec.total))]
        found += [workflow_id for workflow_id in known if await _is_open(client, workflow_id)]
    for workflow_id in found:
        # What is listed may have ended meanwhile.
        with contextlib.suppress(RPCError):
            await client.get_workflow_handle(workflow_id).terminate()
    return not found


async def _is_open(client: Client, workflow_id: str) -> bool:
    try:
        return (await client.get_workflow_handle(workflow_id).describe()).status == WorkflowExecutionStatus.RUNNING
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
