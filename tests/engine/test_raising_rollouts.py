"""Whatever is raised in a rollout's workflow, it reports and tears down, and its job ends with its summary."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Literal

import pytest
from support import own_branching
from support.in_process_worker import InProcessWorker
from support.raising import PASSED, PLANNED, RAISED, RETURNED, Raise, is_started_before, raising_workflows, sites
from support.raising_scenarios import SCENARIOS, Scenario
from temporalio.client import WorkflowExecutionStatus

from benchflow.activities.leftovers import Leftovers
from benchflow.activities.reaper import Reaper
from benchflow.contracts import ids
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import Job
from benchflow.testing.waiting import until

__all__ = ["raising_workflows"]

UNREACHED = {
    "workflow_cancellation:cancel_workflows:0": "only jobs do",
    "workflow_cancellation:_cancel:0": "only jobs do",
    "workflow_cancellation:send:0": "only jobs do",
    "preflight_workflow:run:0": "a workflow of its own, before the job's",
    "children:_start_child:1": "a child of an earlier run has not ended: in test_trees.py",
    "rollout_slots:_report_all:2": "a job is gone: in test_slots.py",
    "rollout_slots:_wait_for_job:0": "a job is gone: in test_slots.py",
    "rollout_workflow:run:2": "the end is run once more where the await of the first one has raised",
}
"""Awaits that no scenario comes by, and why."""

CANCELLED = {"branching:_write_growth:0", "branching:_write_growth:1", "rollout_slots:_report_all:0"}
"""Awaits that are cancelled, or not come by, as the children of a tree happen to begin and to end."""

STARTED = {"rollout_workflow:_work_in_time:1", "workflow_cancellation:await_result:0"}
"""Awaits of a task by a call: it can't raise before the task has ended."""


Case = tuple[Literal["root", "child"], str]
"""An await, and the kind of rollout that comes by it."""

# --- the tests ---------------------------------------------------------------------------------------------


@pytest.fixture
def raising(raising_workflows: None, worker: InProcessWorker) -> InProcessWorker:
    worker.context.slots.limit = 1000
    worker.patch.setattr("benchflow.activities.reaper.list_provider_names", lambda: ["hall"])
    worker.patch.syspath_prepend(Path(own_branching.__file__).parent)
    return worker


async def test_a_rollout_reports_and_tears_down_whichever_await_of_the_usual_way_raises(
    raising: InProcessWorker,
) -> None:
    assert len(await run(raising, "linear", but_for=set(), also_after=False)) >= 35


@pytest.mark.long
async def test_a_rollout_reports_and_tears_down_whichever_await_raises(raising: InProcessWorker) -> None:
    """Each in the first scenario that comes by it, once in a root and once in a child, if children come by it, too."""
    passed: set[Case] = set()
    for name in SCENARIOS:
        with raising.patch.context() as patch:
            raising.patch, before = patch, raising.patch
            passed |= await run(raising, name, but_for=passed)
            raising.patch = before
            raising.provider.held, raising.provider.elsewhere, raising.context.slots.limit = False, {}, 1000
            # What a lost host has stays there.
            raising.provider.open.clear()
            raising.provider.images.clear()
    assert set(sites(of_jobs=False)) - {site for _, site in passed} == UNREACHED.keys()


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_rollout_reports_and_tears_down_whichever_await_raises_in_each_scenario(
    raising: InProcessWorker, scenario: str
) -> None:
    # Of those with an agent, the rollout whose sandbox is refused comes by the fewest.
    least = 20 if SCENARIOS[scenario].place else 25
    assert len(await run(raising, scenario, but_for=set())) >= least


async def run(worker: InProcessWorker, name: str, *, but_for: set[Case], also_after: bool = True) -> set[Case]:
    """Run a scenario with an exception at each await that it comes by, but for some. Returns those of both kinds.

    also_after: whether there is a second rollout for each, in which it raises once what is awaited has ended.
    """
    scenario = SCENARIOS[name]
    task = scenario.task(worker)
    plain_job, (plain,) = await finished(worker, f"{name}-plain", scenario, task, [("", None)])
    (result,) = await worker.results(plain_job)
    assert result.status == scenario.status
    cases: dict[Case, str] = {}
    for workflow_id, passed in list(PASSED.items()):
        if workflow_id.partition("/b/")[0] == plain:
            below = workflow_id.removeprefix(plain)
            # The first child stands for all.
            for site in passed:
                cases.setdefault(("child" if below else "root", site), below)
    planned: list[tuple[str, Raise | None]] = []
    for case, below in cases.items():
        if case in but_for:
            continue
        if not is_started_before(case[1]) and case[1] not in STARTED:
            planned.append((below, Raise(case[1], "before")))
        if also_after and case[1] in RETURNED.get(plain + below, {}):
            planned.append((below, Raise(case[1], "after")))
    if not planned:
        return set(cases)
    job, rollouts = await finished(worker, name, scenario, task, planned)
    # A child that its parent has lost sight of is cancelled once that is over.
    lost = {rollout + below for rollout, (below, _) in zip(rollouts, planned, strict=True) if loses(rollout + below)}

    async def left() -> set[str]:
        owned = await worker.provider.owned(worker.context.stack)
        return {one.labels["benchflow.workflow"] for one in owned if not scenario.has_lost_host} - lost

    async def is_torn_down() -> bool:
        return not await left()

    with contextlib.suppress(AssertionError):
        await until(is_torn_down, seconds=20)
    assert {one: PLANNED.get(one) or PLANNED.get(one.partition("/b/")[0]) for one in await left()} == {}, name
    await Reaper(worker.context).reap()
    if scenario.keeps_checkpoints:
        options = worker.context.options.model_copy(update={"leftovers_retain_days": 0})
        with worker.patch.context() as patch:
            patch.setattr(worker.context, "options", options)
            await Leftovers(worker.context).remove()
    # A lost host keeps what it has.
    assert scenario.has_lost_host or (worker.provider.open, worker.provider.images) == (set(), {})
    assert list(worker.context.paths.checkpoints.glob("*.json")) == []
    assert json.loads(job.directory.summary.read_text())["finished"] == len(planned)
    by_id = {result.workflow_id: result for result in await worker.results(job)}
    n_raised = sum(rollout + below in RAISED for rollout, (below, _) in zip(rollouts, planned, strict=True))
    assert 2 * n_raised >= len(planned), f"{name}: {n_raised} of {len(planned)}"
    problems = {}
    for rollout, (below, raise_) in zip(rollouts, planned, strict=True):
        if raise_ is not None and raise_.site in CANCELLED and rollout + below not in RAISED:
            continue
        if problem := wrong(scenario, by_id.get(rollout), RAISED.get(rollout + below), is_root=not below):
            problems[raise_, below] = problem
    assert problems == {}, name
    return set(cases)


def loses(workflow_id: str) -> bool:
    """Return whether the exception may have taken the result of what has just started a sandbox."""
    return workflow_id in RAISED and RAISED[workflow_id][0] == "provision" and PLANNED[workflow_id].when == "after"


async def finished(
    worker: InProcessWorker, name: str, scenario: Scenario, task: Path, planned: list[tuple[str, Raise | None]]
) -> tuple[Job, list[str]]:
    """Run a job of as many rollouts as there are exceptions; returns it, and the ids of its rollouts."""
    place = Path(worker.root, "jobs", name, *scenario.place)
    job_id = ids.job_id(place.name, str(place.parent))
    rollouts = [ids.rollout_id(job_id, task.name, "oracle", number) for number in range(len(planned))]
    raises = {rollout + below: raise_ for rollout, (below, raise_) in zip(rollouts, planned, strict=True) if raise_}
    PLANNED.update(raises if scenario.again is None else {})
    scenario.prepare(worker, rollouts)
    if scenario.has_lost_host:
        worker.options(host_start_timeout_sec=0.5, host_silent_sec=0.5)
    job = await worker.submit(
        task,
        repeats=len(planned),
        # Where somebody acts on all of them, they wait for one another, and so do the two children of each.
        concurrency=min(3 * len(planned), 500) if scenario.act else min(len(planned), 32),
        job_name=name,
        retry={"max_retries": 0},
        **scenario.options,
        **({"branch": scenario.branch} if scenario.branch else {}),
    )
    handles = [job.engine.client.get_workflow_handle(rollout) for rollout in rollouts]
    acting = asyncio.ensure_future(scenario.act(worker, handles)) if scenario.act else None
    try:
        async with asyncio.timeout(300):
            await job.wait()
        if scenario.again is not None:
            for seen in (PASSED, RETURNED):
                seen.clear()
            PLANNED.update(raises)
            async with asyncio.timeout(300):
                job = await scenario.again(worker, job)
                await job.wait()
    except TimeoutError:
        described = [await handle.describe() for handle in handles]
        open_ = [one.id for one in described if one.status == WorkflowExecutionStatus.RUNNING]
        raise AssertionError(f"open: { {one: PLANNED.get(one) for one in open_} }") from None
    finally:
        if acting is not None:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
    return job, rollouts


def wrong(
    scenario: Scenario, result: RolloutResult | None, raised: tuple[str, int] | None, *, is_root: bool
) -> str | None:
    """Return what is wrong with the row of a rollout in which an await has raised; None if nothing is."""
    if raised is None and scenario.status == "passed":
        # What is cancelled, or has failed, leaves awaits without an end of their own.
        return "it was not raised"
    if result is None:
        return "no row"
    if result.reward not in (None, 1.0):
        return f"the reward is {result.reward}"
    if (result.status == "passed") != (result.reward == 1.0):
        return f"{result.status} with the reward {result.reward}"
    if result.status == "errored" and (result.error is None or result.error.category not in scenario.categories):
        return f"the failure is {result.error}"
    n_measured = raised[1] if raised is not None else 0
    if is_root and scenario.n_measured and n_measured == scenario.n_measured and result.reward is None:
        return f"the reward was measured and is lost: {result.error}"
    return None
