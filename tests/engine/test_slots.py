"""The sandboxes of a job that run at a time: never more than its `-n`, children of rollouts included."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.asked import ask, question
from support.embedded import chance_of_this_run
from support.in_process_worker import InProcessWorker
from temporalio.client import WorkflowExecutionStatus

from benchflow.jobs import Job
from benchflow.testing.waiting import until
from benchflow.workflows import rollout_slots

PAIRS = {"kind": "after_steps", "steps": [0], "n": 2}
"""A root has two children, which do all of its steps."""


async def finished(worker: InProcessWorker, job: Job, limit: int) -> None:
    """Wait for a job, of which each rollout must have ended well, and so many sandboxes may have run at a time."""
    results = await worker.results(job)
    assert [(result.status, result.error) for result in results] == [("passed", None)] * job.spec.total
    assert max(worker.provider.running) <= limit, worker.provider.running
    assert not worker.provider.open and not worker.provider.frozen


def branch(policy: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"policy": policy, "max_depth": 3} | more


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.long)])
async def test_one_slot_is_enough_for_trees_of_any_depth(worker: InProcessWorker, depth: int) -> None:
    policy = PAIRS | {"steps": [*range(depth)]}
    job = await worker.submit(worker.stepped(depth), concurrency=1, branch=branch(policy))
    await finished(worker, job, 1)
    # Each child takes one step, and the leaves of the last two.
    assert len(worker.provider.turns) == sum(worker.provider.turns.values()) == 2 ** (depth + 1) - 2


async def test_children_run_as_many_at_a_time_as_there_are_slots(worker: InProcessWorker) -> None:
    worker.provider.held = True
    policy = {"kind": "after_steps", "steps": [0], "n": 4}
    job = await worker.submit(worker.stepped(1), concurrency=3, branch=branch(policy))
    first = await worker.in_turn(3)
    assert len(worker.provider.open) == 4 and len(worker.provider.frozen) == 1
    worker.provider.release(first[0])
    assert len(await worker.in_turn(3)) == 3
    worker.provider.release_all()
    await finished(worker, job, 3)
    assert 3 in worker.provider.running


async def test_no_tree_is_begun_while_children_of_another_wait(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(1), repeats=2, concurrency=1, branch=branch(PAIRS))
    await finished(worker, job, 1)
    first, second, third, fourth = [rollout.partition("/b/")[0] for rollout in worker.provider.order]
    assert first == second != third == fourth


@pytest.mark.parametrize("then", ["itself", pytest.param("best", marks=pytest.mark.long)])
async def test_a_parent_that_resumes_has_the_slot_of_its_last_child(worker: InProcessWorker, then: str) -> None:
    job = await worker.submit(
        worker.stepped(2), repeats=2, concurrency=1, branch=branch(PAIRS, then=then, horizon=1, max_depth=1)
    )
    await finished(worker, job, 1)
    # No other root has begun in between.
    trees = [rollout.partition("/b/")[0] for rollout in worker.provider.order]
    assert trees == sorted(trees, key=trees.index)


async def test_children_who_answer_for_themselves_run_while_their_parent_is_frozen(worker: InProcessWorker) -> None:
    ask(worker, [question("q", "yes", "no")], step=1)
    job = await worker.submit(worker.stepped(2), concurrency=1, branch=branch({"kind": "ask_user"}, max_depth=1))
    await finished(worker, job, 1)


async def test_the_number_of_slots_may_be_changed_while_children_run(worker: InProcessWorker) -> None:
    worker.provider.held = True
    policy = {"kind": "after_steps", "steps": [0], "n": 6}
    job = await worker.submit(worker.stepped(1), concurrency=1, branch=branch(policy))
    await worker.in_turn(1)
    await job.set_concurrency(3)
    first = await worker.in_turn(3)
    await job.set_concurrency(2)
    await worker.progress(job, lambda progress: progress.concurrency == 2)
    seen = len(worker.provider.running)
    worker.provider.release(*first)
    assert len(await worker.in_turn(2)) == 2
    worker.provider.release_all()
    await finished(worker, job, 3)
    assert max(worker.provider.running[seen:]) == 2


async def test_a_job_that_continues_as_new_knows_who_has_its_slots(worker: InProcessWorker) -> None:
    worker.options(history_limit=30)
    job = await worker.submit(worker.stepped(1), repeats=3, concurrency=2, branch=branch(PAIRS))
    await finished(worker, job, 2)
    described = await job.engine.client.get_workflow_handle(job.id).describe()
    assert described.run_id != described.raw_description.workflow_execution_info.first_run_id


@pytest.mark.parametrize(
    "seed_offset", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
async def test_trees_of_any_kind_end_with_any_number_of_slots(worker: InProcessWorker, seed_offset: int) -> None:
    """With the number of slots changed, and children cancelled and terminated, meanwhile."""
    chance = chance_of_this_run()
    for _ in range(seed_offset + 1):
        chance.random()
    limits = [chance.randint(1, 3)]
    steps = chance.sample(range(3), chance.randint(1, 3))
    policy = {"kind": "after_steps", "steps": sorted(steps), "n": chance.randint(1, 3)}
    more = {"then": chance.choice(["stop", "best", "itself"]), "concurrency": chance.randint(1, 4)}
    job = await worker.submit(
        worker.stepped(3), repeats=2, concurrency=limits[0], branch=branch(policy, max_children=40, **more)
    )

    async def disturb() -> None:
        for number in range(4):
            begun = len(worker.provider.order)
            await until(lambda begun=begun: len(worker.provider.order) > begun)  # type: ignore[misc]
            children = [rollout for rollout in worker.provider.order if "/b/" in rollout]
            handle = job.engine.client.get_workflow_handle(chance.choice(children or worker.provider.order))
            limits.append(chance.randint(1, 3))
            await job.set_concurrency(limits[-1])
            if number == 1 and (await handle.describe()).status == WorkflowExecutionStatus.RUNNING:
                await handle.cancel()

    disturbing = asyncio.create_task(disturb())
    results = await worker.results(job)
    disturbing.cancel()
    await asyncio.gather(disturbing, return_exceptions=True)
    assert len(results) == 2 and {result.status for result in results} <= {"passed", "cancelled", "errored"}
    assert max(worker.provider.running) <= max(limits), (limits, worker.provider.running)
    assert not worker.provider.open


async def test_a_child_that_is_terminated_gives_its_slot_back(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(worker.stepped(1), concurrency=1, branch=branch(PAIRS))
    (first,) = await worker.in_turn(1)
    await job.engine.client.get_workflow_handle(first).terminate("by an operator")
    await until(lambda: [rollout for rollout in worker.provider.in_turn if rollout != first])
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)


async def test_a_rollout_that_is_cancelled_while_its_children_wait_ends_at_once(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(worker.stepped(2), repeats=2, concurrency=2, branch=branch(PAIRS | {"steps": [1]}))
    first, second = await worker.in_turn(2)
    await job.set_concurrency(1)
    await worker.progress(job, lambda progress: progress.concurrency == 1)
    worker.provider.release(first)
    await until(lambda: len(worker.provider.frozen) == 1)
    await job.cancel_rollout(first)
    await worker.progress(job, lambda progress: progress.counts.cancelled == 1)
    worker.provider.release_all()
    results = {result.workflow_id: result for result in await worker.results(job)}
    assert results[second].status == "passed"
    assert results[first].status == "cancelled"
    assert any("waited for a slot" in warning for warning in results[first].warnings)
    assert not worker.provider.open


async def test_a_rollout_goes_on_without_slots_where_its_job_was_terminated(worker: InProcessWorker) -> None:
    worker.patch.setattr(rollout_slots, "ASK_AGAIN_SEC", 0.3)
    worker.patch.setattr(rollout_slots, "WITHOUT_JOB_SEC", 1.0)
    worker.provider.held = True
    policy = {"kind": "after_steps", "steps": [0], "n": 3}
    job = await worker.submit(worker.stepped(1), concurrency=1, branch=branch(policy))
    await worker.in_turn(1)
    await job.engine.client.get_workflow_handle(job.id).terminate("by an operator")
    await worker.in_turn(3)
    worker.provider.release_all()
    root = job.engine.client.get_workflow_handle(job.spec.rollout_id(job.id, 0))
    outcome = await root.result()
    assert outcome["status"] == "passed"


async def test_a_job_that_is_submitted_anew_learns_who_has_its_slots(worker: InProcessWorker) -> None:
    worker.patch.setattr(rollout_slots, "ASK_AGAIN_SEC", 0.3)
    worker.provider.held = True
    policy = {"kind": "after_steps", "steps": [0], "n": 3}
    options: dict[str, Any] = {"repeats": 2, "concurrency": 1, "branch": branch(policy)}
    job = await worker.submit(worker.stepped(1), **options)
    (first,) = await worker.in_turn(1)
    await job.engine.client.get_workflow_handle(job.id).terminate("by an operator")
    again = await worker.submit(worker.root / "tasks" / "play", **options)
    # Its first rollout runs already.
    await worker.progress(again, lambda progress: progress.open_count == 1)
    worker.provider.release(first)
    for _ in range(2):
        worker.provider.release(*await worker.in_turn(1))
    worker.provider.release_all()
    await finished(worker, again, 1)
