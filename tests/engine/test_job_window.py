"""A job keeps its window: what is open, paused, widened, narrowed, cancelled."""

from __future__ import annotations

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.contracts.job import JobOutcome
from benchflow.testing.waiting import until

SENT = "EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"
"""A cancellation that a job sends to a rollout."""


async def test_never_more_rollouts_are_open_than_the_window_allows(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=8, concurrency=3)
    for done in range(5):
        waiting = await worker.in_turn(3)
        progress = await worker.progress(job, lambda p, done=done: p.counts.finished == done and p.open_count == 3)
        assert (progress.waiting, progress.total, progress.concurrency) == (5 - done, 8, 3)
        worker.provider.release(waiting[0])
        await worker.progress(job, lambda p, done=done: p.counts.finished == done + 1)
    worker.provider.release_all()
    results = await worker.results(job)
    assert worker.provider.most_open == 3
    assert [result.status for result in results] == ["passed"] * 8
    assert set(worker.provider.turns.values()) == {1} and len(worker.provider.turns) == 8


async def test_a_paused_job_starts_nothing_and_goes_on_when_resumed(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=4, concurrency=2)
    waiting = await worker.in_turn(2)
    await job.pause()
    worker.provider.release(*waiting)
    progress = await worker.progress(job, lambda p: p.counts.finished == 2)
    assert (progress.paused, progress.open_count, progress.waiting) == (True, 0, 2)
    assert len(worker.provider.turns) == 2
    await job.unpause()
    assert len(await worker.in_turn(2)) == 2
    worker.provider.release_all()
    assert len(await worker.results(job)) == 4


async def test_the_window_follows_set_concurrency_both_ways(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=9, concurrency=1)
    await worker.in_turn(1)
    await job.set_concurrency(4)
    waiting = await worker.in_turn(4)
    await job.set_concurrency(2)
    worker.provider.release(*waiting)
    progress = await worker.progress(job, lambda p: p.counts.finished == 4 and p.open_count == 2)
    assert (progress.concurrency, progress.waiting) == (2, 3)
    await worker.in_turn(2)
    worker.provider.release_all()
    assert len(await worker.results(job)) == 9
    assert worker.provider.most_open == 4


async def test_one_rollout_is_cancelled_and_the_others_are_not(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=3, concurrency=3)
    victim = (await worker.in_turn(3))[1]
    await job.cancel_rollout(victim)
    await worker.progress(job, lambda p: p.counts.cancelled == 1)
    worker.provider.release_all()
    results = {result.workflow_id: result for result in await worker.results(job)}
    cancelled = results.pop(victim)
    assert (cancelled.status, cancelled.rewards, cancelled.is_truncated) == ("cancelled", None, True)
    assert cancelled.error is not None
    assert (cancelled.error.type, cancelled.error.phase) == ("RolloutCancelledError", "execute")
    assert [result.status for result in results.values()] == ["passed", "passed"]
    assert not worker.provider.open


async def test_a_rollout_that_waits_is_cancelled_once_it_runs(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=3, concurrency=1)
    (first,) = await worker.in_turn(1)
    last = job.spec.rollout_id(job.id, 2)
    await job.cancel_rollout(last)
    await job.cancel_rollout("of another job")
    worker.provider.release_all()
    results = {result.workflow_id: result.status for result in await worker.results(job)}
    assert len(results) == 3
    assert results.pop(last) == "cancelled"
    assert set(results.values()) == {"passed"} and first in results


async def test_a_cancelled_job_tears_down_what_is_open_and_starts_nothing_more(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=5, concurrency=2)
    await worker.in_turn(2)
    await job.cancel()
    results = await worker.results(job)
    assert [result.status for result in results] == ["cancelled", "cancelled"]
    assert [result.rewards for result in results] == [None, None]
    assert not worker.provider.open
    # Both were sent at once: the second did not wait for the answer to the first.
    events = await worker.events(job)
    first = events.index(SENT)
    assert events[first : first + 2] == [SENT, SENT]
    outcome: JobOutcome = await job.handle.result()
    assert (outcome.counts.cancelled, outcome.not_started) == (2, 3)
    summary = job.summarize()
    assert (summary.total, summary.cancelled, summary.not_run) == (5, 2, 3)


async def test_a_cancelled_job_is_taken_up_again_where_it_stopped(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=4, concurrency=2)
    worker.provider.release((await worker.in_turn(2))[0])
    await worker.progress(job, lambda p: p.counts.passed == 1)
    await worker.in_turn(2)
    await job.cancel()
    await job.wait()
    worker.provider.release_all()
    again = await worker.submit(repeats=4, concurrency=2, again=("cancelled",))
    assert again.started == 3
    results = await worker.results(again)
    assert [result.status for result in results] == ["passed"] * 4
    assert sum(worker.provider.turns.values()) == 6


async def test_a_job_tells_an_operator_what_it_is_doing(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=2)
    rollout = (await worker.in_turn(2))[0]
    described = await job.engine.client.get_workflow_handle(rollout).describe()
    attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    wanted = {"BenchflowJob": "show", "BenchflowTask": "play", "BenchflowAgent": "oracle", "BenchflowPhase": "execute"}
    assert attributes.items() >= wanted.items()
    assert await described.static_summary() == "play · oracle · repeat 0"
    # On a busy machine a look may take longer than it may, and then there is no answer.
    progress = await until(lambda: job.rollout_progress(rollout))
    assert progress is not None and progress.phase == "execute"
    worker.provider.release_all()
    await job.wait()
    described = await job.engine.client.get_workflow_handle(rollout).describe()
    attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    assert (attributes["BenchflowPhase"], attributes["BenchflowReward"]) == ("done", 1.0)


@pytest.mark.long
async def test_rollouts_that_take_much_to_describe_are_named_as_many_as_fit(worker: InProcessWorker) -> None:
    """Twenty of them would be more than one payload may be."""
    job = await worker.submit(repeats=30, concurrency=30, judge={"base_url": "http://judge.example/" + "x" * 5000})
    results = await worker.results(job)
    assert sorted(result.repeat for result in results) == list(range(30))
    assert {result.status for result in results} == {"passed"}
    assert set(worker.provider.turns.values()) == {1}
