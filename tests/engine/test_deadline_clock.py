"""The clock of a rollout's deadline counts work: a rollout may wait for a slot longer than its deadline."""

from __future__ import annotations

import asyncio

from support.theatre import Theatre

from benchflow.testing.waiting import until


async def test_waiting_for_a_slot_is_not_working(theatre: Theatre) -> None:
    slots = theatre.context.slots
    slots.limit, slots.wait_sec = 1, 0.1
    assert slots.take("another")
    job = await theatre.submit(deadline_sec=3)

    async def waits() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_FAILED" in await theatre.events(job, "/r/play/oracle/0")

    await until(waits)
    # Longer than the deadline: only time shows that it does not pass.
    await asyncio.sleep(3.5)
    slots.free("another")
    (result,) = await theatre.results(job)
    assert (result.status, result.error) == ("passed", None)
    assert result.timing["wait"] > 3
    assert slots.taken() == []


async def test_a_cancelled_rollout_leaves_no_slot_for_which_it_waited(theatre: Theatre) -> None:
    slots = theatre.context.slots
    slots.limit, slots.wait_sec = 1, 0.1
    assert slots.take("another")
    job = await theatre.submit()

    async def waits() -> bool:
        return "EVENT_TYPE_ACTIVITY_TASK_FAILED" in await theatre.events(job, "/r/play/oracle/0")

    await until(waits)
    await job.cancel()
    (result,) = await theatre.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    assert slots.taken() == ["another"]
