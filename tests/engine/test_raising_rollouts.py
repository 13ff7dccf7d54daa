"""Whatever is raised in a rollout's workflow, it reports and tears down, and its job ends with its summary."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.raising import PASSED, PLANNED, RAISED, Raise, is_started_before, raising_workflows
from support.theatre import Theatre
from temporalio.client import WorkflowHandle

from benchflow.activities.reaper import Reaper
from benchflow.contracts import ids
from benchflow.contracts.rollout import RolloutResult
from benchflow.jobs import Job
from benchflow.testing.waiting import until

__all__ = ["raising_workflows"]

Act = Callable[[Theatre, WorkflowHandle[Any, Any], list[str]], Awaitable[None]]
NOBODY = "benchflow-host-nobody"


@dataclass(frozen=True)
class Scenario:
    """What a rollout does while one of its awaits raises."""

    task: Callable[[Theatre], Path]
    branch: dict[str, Any] | None = None
    prepare: Callable[[Theatre, list[str]], None] = lambda theatre, rollouts: None
    """Called with the ids of the rollouts before they start."""
    act: Act | None = None
    """What somebody does to each of the rollouts while it runs."""
    n_measured: int = 1
    """Steps of which the reward is made; 0 where it is made of children's."""
    has_lost_host: bool = False
    """Whether sandboxes are on a host that is gone, where they stay."""


def one_step(theatre: Theatre) -> Path:
    return theatre.task()


def two_steps(theatre: Theatre) -> Path:
    return theatre.stepped(2)


# --- what happens to rollouts ------------------------------------------------------------------------------


def fill(theatre: Theatre, rollouts: list[str]) -> None:
    theatre.context.slots.limit = 0


async def free_slots(theatre: Theatre, handle: WorkflowHandle[Any, Any], rollouts: list[str]) -> None:
    """Free the slots of the host once all rollouts wait for one."""
    while not all(one in RAISED or "hosts:wait_for_slot:0" in PASSED.get(one, {}) for one in rollouts):
        await asyncio.sleep(0.05)
    theatre.context.slots.limit = 1000


def lose_first(theatre: Theatre, rollouts: list[str]) -> None:
    theatre.hall.elsewhere = {rollout: [NOBODY] for rollout in rollouts}


SCENARIOS = {
    "linear": Scenario(one_step),
    "steps": Scenario(two_steps, n_measured=2),
    "slot": Scenario(one_step, prepare=fill, act=free_slots),
    "lost": Scenario(one_step, prepare=lose_first, has_lost_host=True),
    "keep": Scenario(two_steps, {"policy": {"kind": "none"}, "checkpoint": "per_turn", "portable": True}, n_measured=2),
}

STARTED = {"rollout:_work_in_time:1", "cancellation:result_of:0"}
"""Awaits of a task by a call: it can't raise before the task has ended."""


# --- the tests ---------------------------------------------------------------------------------------------


@pytest.fixture
def raising(raising_workflows: None, theatre: Theatre) -> Theatre:
    theatre.options(host_start_timeout_sec=0.5, host_silent_sec=0.5)
    theatre.context.slots.limit = 1000
    theatre.patch.setattr("benchflow.activities.reaper.provider_names", lambda: ["hall"])
    return theatre


async def test_a_rollout_reports_and_tears_down_whichever_await_of_the_usual_way_raises(raising: Theatre) -> None:
    assert len(await run(raising, "linear")) >= 35


@pytest.mark.long
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "linear"])
async def test_a_rollout_reports_and_tears_down_whichever_await_raises(raising: Theatre, scenario: str) -> None:
    assert len(await run(raising, scenario)) >= 35


async def run(theatre: Theatre, name: str) -> set[tuple[str, str]]:
    """Run a scenario with an exception at each await that it comes by, in a root or in a child. Returns those."""
    scenario = SCENARIOS[name]
    task = scenario.task(theatre)
    plain_job, (plain,) = await finished(theatre, f"{name}-plain", scenario, task, [("", None)])
    (result,) = await theatre.results(plain_job)
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    cases: dict[tuple[str, str], str] = {}
    for workflow_id, passed in list(PASSED.items()):
        if workflow_id.partition("/b/")[0] == plain:
            below = workflow_id.removeprefix(plain)
            # The first child stands for all.
            for site in passed:
                cases.setdefault(("child" if below else "root", site), below)
    planned: list[tuple[str, Raise | None]] = []
    for case, below in cases.items():
        if not is_started_before(case[1]) and case[1] not in STARTED:
            planned.append((below, Raise(case[1], "before")))
        planned.append((below, Raise(case[1], "after")))
    job, rollouts = await finished(theatre, name, scenario, task, planned)
    # A child that its parent has lost sight of is cancelled once that is over.
    lost = {rollout + below for rollout, (below, _) in zip(rollouts, planned, strict=True) if loses(rollout + below)}

    async def left() -> set[str]:
        owned = await theatre.hall.owned(theatre.context.stack)
        return {one.labels["benchflow.workflow"] for one in owned if not scenario.has_lost_host} - lost

    async def is_torn_down() -> bool:
        return not await left()

    with contextlib.suppress(AssertionError):
        await until(is_torn_down, seconds=20)
    assert {one: PLANNED.get(one) or PLANNED.get(one.partition("/b/")[0]) for one in await left()} == {}, name
    await Reaper(theatre.context).reap()
    theatre.hall.open -= {name for name in theatre.hall.open if scenario.has_lost_host}
    assert (theatre.hall.open, theatre.hall.images) == (set(), {})
    assert list(theatre.context.paths.checkpoints.glob("*.json")) == []
    assert json.loads(job.directory.summary.read_text())["finished"] == len(planned)
    by_id = {result.workflow_id: result for result in await theatre.results(job)}
    problems = {}
    for rollout, (below, raise_) in zip(rollouts, planned, strict=True):
        if problem := wrong(scenario, by_id.get(rollout), RAISED.get(rollout + below), is_root=not below):
            problems[raise_, below] = problem
    assert problems == {}, name
    return set(cases)


def loses(workflow_id: str) -> bool:
    """Return whether the exception may have taken the result of what has just started a sandbox."""
    return workflow_id in RAISED and RAISED[workflow_id][0] == "provision" and PLANNED[workflow_id].when == "after"


async def finished(
    theatre: Theatre, name: str, scenario: Scenario, task: Path, planned: list[tuple[str, Raise | None]]
) -> tuple[Job, list[str]]:
    """Run a job of as many rollouts as there are exceptions; returns it, and the ids of its rollouts."""
    job_id = ids.job_id(name, str(theatre.root / "jobs"))
    rollouts = [ids.rollout_id(job_id, "play", "oracle", number) for number in range(len(planned))]
    PLANNED.update(
        {rollout + below: raise_ for rollout, (below, raise_) in zip(rollouts, planned, strict=True) if raise_}
    )
    scenario.prepare(theatre, rollouts)
    job = await theatre.submit(
        task,
        repeats=len(planned),
        concurrency=len(planned),
        job_name=name,
        retry={"max_retries": 0},
        **({"branch": scenario.branch} if scenario.branch else {}),
    )
    handles = [job.engine.client.get_workflow_handle(rollout) for rollout in rollouts]
    acting = [asyncio.ensure_future(scenario.act(theatre, handle, rollouts)) for handle in handles if scenario.act]
    try:
        async with asyncio.timeout(300):
            await job.wait()
    finally:
        for task in acting:
            task.cancel()
        await asyncio.gather(*acting, return_exceptions=True)
    return job, rollouts


def wrong(
    scenario: Scenario, result: RolloutResult | None, raised: tuple[str, int] | None, *, is_root: bool
) -> str | None:
    """Return what is wrong with the row of a rollout in which an await has raised; None if nothing is."""
    if raised is None:
        return "it was not raised"
    if result is None:
        return "no row"
    if result.reward not in (None, 1.0):
        return f"the reward is {result.reward}"
    if (result.status == "passed") != (result.reward == 1.0):
        return f"{result.status} with the reward {result.reward}"
    if result.status == "errored" and (result.error is None or result.error.category not in ("internal", "execute")):
        return f"the failure is {result.error}"
    n_measured = raised[1]
    if is_root and scenario.n_measured and n_measured == scenario.n_measured and result.reward is None:
        return f"the reward was measured and is lost: {result.error}"
    return None
