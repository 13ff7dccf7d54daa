"""Clients while the server is away: whoever waits for a job goes on, whoever asks for something is told why not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from support.in_process_worker import InProcessWorker
from support.relay import Relay

from benchflow.errors import JobNotFoundError, NotRestorableError, ServerUnavailableError
from benchflow.jobs import Job
from benchflow.jobs.rollback_request import roll_back_running
from benchflow.temporal import connect
from benchflow.testing.waiting import until

# The SDK asks again for ten seconds before it says that a server is away.
pytestmark = pytest.mark.long


@pytest.fixture
async def relay(worker: InProcessWorker) -> AsyncIterator[Relay]:
    async with Relay.to(worker.target.address) as relay:
        yield relay


async def by_way_of(relay: Relay, job: Job) -> Job:
    """The job as a client sees it whose connection the relay has. The server is one that the client can't start."""
    target = replace(job.engine.target, address=f"127.0.0.1:{relay.port}", embedded=False)
    return replace(job, engine=replace(job.engine, client=await connect(target), target=target))


async def test_whoever_waits_for_a_job_goes_on_and_says_so_once(
    worker: InProcessWorker, relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("benchflow.jobs.engine_connection.WARN_AFTER_SEC", 0.0)
    worker.provider.held = True
    job = await by_way_of(relay, await worker.submit())
    await worker.in_turn(1)
    waiting = asyncio.create_task(job.wait())
    relay.close()
    with caplog.at_level(logging.WARNING, "benchflow.jobs"):
        await until(lambda: caplog.records)
    assert not waiting.done()
    worker.provider.release_all()
    relay.reopen()
    await waiting
    assert [result.status for result in job.results()] == ["passed"]
    assert [job.name in record.getMessage() for record in caplog.records] == [True]


REQUESTS: dict[str, Callable[[Job], Awaitable[object]]] = {
    "signal": lambda job: job.pause(),
    "cancel": lambda job: job.cancel(),
    "rollback": lambda job: roll_back_running(job.engine.client, job.spec.rollout_id(job.id, 0), "n1"),
}


async def test_a_request_tells_an_outage_from_a_job_that_does_not_run(worker: InProcessWorker, relay: Relay) -> None:
    worker.provider.held = True
    job = await by_way_of(relay, await worker.submit())
    await worker.in_turn(1)
    relay.close()
    answers = await asyncio.gather(*(request(job) for request in REQUESTS.values()), return_exceptions=True)
    assert dict(zip(REQUESTS, map(type, answers), strict=True)) == dict.fromkeys(REQUESTS, ServerUnavailableError)
    relay.reopen()
    worker.provider.release_all()
    await worker.results(job)
    with pytest.raises(JobNotFoundError):
        await job.pause()
    with pytest.raises(NotRestorableError):
        await roll_back_running(job.engine.client, job.spec.rollout_id(job.id, 0), "n1")
