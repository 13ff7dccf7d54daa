"""The clock of a rollout's deadline counts work: a rollout may wait longer than its deadline."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from support.asked import ask, question
from support.in_process_worker import InProcessWorker
from temporalio.client import WorkflowHandle

from benchflow.contracts import temporal_names
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollout_records import Answer
from benchflow.contracts.sandbox import SandboxRef
from benchflow.jobs import Job
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.worker import make_workers
from benchflow.workflows.agent_turns import MAX_ANSWERS

DEADLINE_SEC = 2.0
LATE = "benchflow-host-late"


async def has_passed() -> None:
    """Wait until a rollout has waited for longer than its deadline: only time shows that it does not pass."""
    await asyncio.sleep(DEADLINE_SEC + 0.3)


def rollout_of(job: Job, chain: str = "") -> WorkflowHandle[object, object]:
    return job.engine.client.get_workflow_handle(job.id + "/r/play/oracle/0" + chain)


async def test_waiting_for_a_slot_is_not_working(worker: InProcessWorker) -> None:
    slots = worker.context.slots
    slots.limit, slots.wait_sec = 1, 0.1
    assert slots.take("another")
    job = await worker.submit(deadline_sec=DEADLINE_SEC)

    async def waits() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_FAILED" in await worker.events(job, "/r/play/oracle/0")

    await until(waits)
    await has_passed()
    slots.free("another")
    (result,) = await worker.results(job)
    assert (result.status, result.error) == ("passed", None)
    assert result.timing["wait"] > DEADLINE_SEC
    assert slots.taken() == []


async def asks(job: Job, chain: str = "") -> str | None:
    """Return the question for whose answer the rollout waits."""
    progress = await rollout_of(job, chain).query(temporal_names.PROGRESS, result_type=RolloutProgress)
    return progress.question.id if progress.question is not None else None


async def test_waiting_for_a_person_is_not_working(worker: InProcessWorker) -> None:
    ask(worker, [question("q", "yes")])
    job = await worker.submit(deadline_sec=DEADLINE_SEC)
    await until(lambda: worker.events(job, "/r/play/oracle/0"))
    await until(lambda: asks(job))
    await has_passed()
    await rollout_of(job).signal(temporal_names.ANSWER, Answer(question="q", option="yes"))
    (result,) = await worker.results(job)
    assert (result.status, result.error) == ("passed", None)
    assert result.timing["wait"] > DEADLINE_SEC


async def test_answers_that_cannot_be_one_are_counted_and_ignored(worker: InProcessWorker) -> None:
    ask(worker, [question("q", "yes"), question("late", "yes")])
    job = await worker.submit()
    await until(lambda: worker.events(job, "/r/play/oracle/0"))
    await until(lambda: asks(job))
    rollout = rollout_of(job)
    await rollout.signal(temporal_names.ANSWER, Answer(question="q", option="no"))
    for number in range(MAX_ANSWERS + 3):
        await rollout.signal(temporal_names.ANSWER, Answer(question=f"never-{number}", option="yes"))
    await rollout.signal(temporal_names.ANSWER, Answer(question="late", option="yes"))
    await rollout.signal(temporal_names.ANSWER, Answer(question="q", option="yes"))

    async def asks_late() -> bool:
        return await asks(job) == "late"

    # It was answered before, when there was no place for it.
    await until(asks_late)
    await rollout.signal(temporal_names.ANSWER, Answer(question="late", option="yes"))
    (result,) = await worker.results(job)
    assert (result.status, result.error) == ("passed", None)
    (warning,) = result.warnings
    assert warning.startswith("ignored answers: 5;")


async def test_waiting_for_children_is_not_working(worker: InProcessWorker) -> None:
    """They have deadlines of their own, which stand still while they wait for a person."""
    ask(worker, [question("q", "yes")], step=1)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}
    job = await worker.submit(worker.stepped(2), branch=branch, deadline_sec=DEADLINE_SEC)
    chains = [f"/b/{short_hash(f'n1.{number}', 16)}" for number in range(2)]
    for chain in chains:
        await until(lambda chain=chain: worker.events(job, f"/r/play/oracle/0{chain}"))  # type: ignore[misc]
        await until(lambda chain=chain: asks(job, chain))  # type: ignore[misc]
    await has_passed()
    for chain in chains:
        await rollout_of(job, chain).signal(temporal_names.ANSWER, Answer(question="q", option="yes"))
    (result,) = await worker.results(job)
    assert (result.status, result.error, result.reward) == ("passed", None, 1.0)
    assert result.timing["wait"] > DEADLINE_SEC


async def test_a_cancelled_rollout_leaves_no_slot_for_which_it_waited(worker: InProcessWorker) -> None:
    slots = worker.context.slots
    slots.limit, slots.wait_sec = 1, 0.1
    assert slots.take("another")
    job = await worker.submit()

    async def waits() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_FAILED" in await worker.events(job, "/r/play/oracle/0")

    await until(waits)
    await job.cancel()
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    assert slots.taken() == ["another"]


async def test_a_sandbox_that_is_cancelled_before_its_host_begins_with_it_leaves_no_slot(
    worker: InProcessWorker,
) -> None:
    def place(**values: Any) -> SandboxRef:
        return SandboxRef(**values | {"queue": LATE})

    # That of the slot: nothing else knows of it.
    worker.patch.setattr("benchflow.hosting.hosted_rollout.SandboxRef", place)
    slots = worker.context.slots
    slots.limit, slots.wait_sec = 0, 0.1
    job = await worker.submit()

    async def waits() -> bool:
        return temporal_names.WAIT_FOR_SLOT in await worker.activities(job.id + "/r/play/oracle/0")

    await until(lambda: worker.events(job, "/r/play/oracle/0"))
    await until(waits)
    slots.limit = 1

    async def is_wanted() -> bool:
        return (await worker.activities(job.id + "/r/play/oracle/0")).count(temporal_names.PROVISION) == 2

    await until(is_wanted)
    assert len(slots.taken()) == 1
    await job.cancel()

    async def is_wanted_no_more() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_CANCELED" in await worker.events(job, "/r/play/oracle/0")

    await until(is_wanted_no_more)
    client = await connect(worker.target)
    late = replace(worker.context, queue=LATE, client=client)
    async with make_workers(late, worker.records, worker.ongoing_work())[1]:
        (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    assert slots.taken() == [] and not worker.provider.turns
