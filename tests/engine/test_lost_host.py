"""A host that stops answering: its sandboxes are provisioned again elsewhere, so often and no more."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker
from temporalio.worker import Worker

from benchflow.activities.job_activities import JobActivities
from benchflow.contracts.activities import HostQuery
from benchflow.contracts.sandbox import SandboxRef
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.worker import make_workers

NOBODY = "benchflow-host-nobody"
BUSY = "benchflow-host-busy"


@pytest.fixture(autouse=True)
def impatient(worker: InProcessWorker) -> None:
    """A rollout waits half a second at a time for a host; one that is only slow is found alive."""
    worker.options(host_start_timeout_sec=0.5)


async def test_a_sandbox_on_a_lost_host_is_provisioned_again(worker: InProcessWorker) -> None:
    worker.provider.elsewhere["play"] = [NOBODY]
    (result,) = await worker.results(await worker.submit())
    assert (result.status, result.attempt, result.error) == ("passed", 1, None)
    assert result.sandbox["provisions"] == 2
    assert len(result.warnings) == 1 and "was lost in connect; provisioned again" in result.warnings[0]
    assert sum(worker.provider.turns.values()) == 1


async def test_a_host_that_is_lost_between_its_slot_and_the_sandbox_costs_no_sandbox(worker: InProcessWorker) -> None:
    def place(**values: Any) -> SandboxRef:
        return SandboxRef(**values | {"queue": NOBODY})

    # That of the slot; the provider makes the sandbox's.
    worker.patch.setattr("benchflow.hosting.hosted_rollout.SandboxRef", place)
    slots = worker.context.slots
    slots.limit, slots.wait_sec = 0, 0.1
    job = await worker.submit(retry={"max_retries": 0})

    async def waits() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_FAILED" in await worker.events(job, "/r/play/oracle/0")

    await until(waits)
    slots.limit = 1
    (result,) = await worker.results(job)
    assert (result.status, result.error, result.warnings) == ("passed", None, [])
    assert result.sandbox["provisions"] == 1
    assert "EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT" in await worker.events(job, "/r/play/oracle/0")
    assert slots.taken() == [] and not worker.provider.open


async def test_three_lost_hosts_are_enough(worker: InProcessWorker) -> None:
    worker.provider.elsewhere["play"] = [NOBODY] * 9
    job = await worker.submit(retry={"max_retries": 0})
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("HostLostError", "sandbox_lost")
    assert result.sandbox["provisions"] == 3
    assert not worker.provider.turns


async def test_a_host_that_is_only_busy_is_waited_for(worker: InProcessWorker) -> None:
    """Nobody took the work in time, but the host asked for work a moment ago."""
    async with await busy_host(worker):
        await until(lambda: asked_for_work(worker))
    worker.provider.elsewhere["play"] = [BUSY]
    job = await worker.submit()

    async def gave_up_once() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT" in await worker.events(job, "/r/play/oracle/0")

    await until(gave_up_once)
    async with await busy_host(worker):
        (result,) = await worker.results(job)
    assert (result.status, result.sandbox["provisions"], result.warnings) == ("passed", 1, [])


@pytest.mark.long
async def test_a_host_is_not_lost_to_a_clock_that_is_ahead_of_the_servers(worker: InProcessWorker) -> None:
    worker.options(host_start_timeout_sec=4)
    async with await busy_host(worker):
        await until(lambda: asked_for_work(worker))
    worker.patch.setattr("benchflow.activities.job_activities.time", AheadClock())
    worker.provider.elsewhere["play"] = [BUSY]
    job = await worker.submit()

    async def was_silent_once() -> bool:
        events = await worker.events(job, "/r/play/oracle/0")
        return events.count("EVENT_TYPE_TIMER_STARTED") > 1 and "EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT" in events

    await until(was_silent_once)
    async with await busy_host(worker):
        (result,) = await worker.results(job)
    assert (result.status, result.sandbox["provisions"], result.warnings) == ("passed", 1, [])


class AheadClock:
    """The clock of a host that is an hour ahead of the server's."""

    def time(self) -> float:
        return time.time() + 3600


async def busy_host(worker: InProcessWorker) -> Worker:
    """A worker of another queue, which shares all else with the worker's."""
    context = replace(worker.context, queue=BUSY, client=await connect(worker.target))
    return make_workers(context, worker.records, worker.ongoing_work())[1]


async def asked_for_work(worker: InProcessWorker) -> bool:
    status = await JobActivities(worker.context).host_status(HostQuery(queue=BUSY))
    return status.last_poll_sec is not None
