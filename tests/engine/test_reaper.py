"""The reaper: it removes what is left of workflows that are over, and touches nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.theatre import Theatre

from benchflow.activities.reaper import Reaper


@pytest.fixture
def reaper(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> Reaper:
    monkeypatch.setattr("benchflow.activities.reaper.provider_names", lambda: ["hall"])
    return Reaper(theatre.context)


async def test_the_sandbox_of_a_running_rollout_is_left_alone_and_that_of_a_terminated_one_goes(
    theatre: Theatre, reaper: Reaper
) -> None:
    theatre.hall.held = True
    job = await theatre.submit(repeats=2, concurrency=2)
    terminated, running = await theatre.in_turn(2)
    assert await reaper.reap() == 0
    await job.engine.client.get_workflow_handle(terminated).terminate()
    assert await reaper.reap() == 1
    assert [owned.labels["benchflow.workflow"] for owned in await theatre.hall.owned(theatre.context.stack)] == [
        running
    ]


async def test_a_sandbox_of_another_stack_is_left_alone_although_its_workflow_is_unknown_here(
    theatre: Theatre, reaper: Reaper
) -> None:
    theatre.hall.held = True
    await theatre.submit()
    await theatre.in_turn(1)
    assert await Reaper(replace(theatre.context, stack="another")).reap() == 0
    assert len(theatre.hall.open) == 1
