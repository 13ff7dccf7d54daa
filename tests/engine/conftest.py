"""A worker on the run's Temporal server, inside the test's own process, with a provider it controls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from support.fake_provider import FakeProvider
from support.in_process_worker import InProcessWorker
from support.run import namespace
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.handover import RunningActivities
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.jobs import Job
from benchflow.paths import StatePaths
from benchflow.planes import sandbox
from benchflow.store import Store
from benchflow.temporal import Target, connect
from benchflow.testing.waiting import until
from benchflow.worker import make_context, make_workers

OPTIONS = WorkerOptions(heartbeat_every_sec=0.1, max_failures=3)
"""A cancelled activity hears of it at its next heartbeat, and an unknown error is final after a second."""


@pytest.fixture
async def worker(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcessWorker]:
    """A worker on the server for the time of a test; what the test leaves open is terminated."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", server)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", namespace())
    monkeypatch.delenv("BENCHFLOW_STORE", raising=False)
    provider = FakeProvider()
    monkeypatch.setitem(sandbox._made, "hall", provider)
    target = Target(server, namespace(), embedded=False)
    client = await connect(target)
    paths = StatePaths.default()
    context = await make_context(client, paths, Store.open(), OPTIONS)
    records = RunningActivities(paths.running, "host")
    records.open()
    work = OngoingWork(client, records.identity, OPTIONS.heartbeat_every_sec)
    async with contextlib.AsyncExitStack() as running:
        running.push_async_callback(work.close)
        for worker in make_workers(context, records, work):
            await running.enter_async_context(worker)
        made = InProcessWorker(provider, tmp_path, target, context, records, monkeypatch)
        yield made
        provider.release_all()
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
