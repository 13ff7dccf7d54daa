"""A rollout that is to stop stops at once, wherever it is, tears down, and measures nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.asked import ask, question
from support.fake_provider import _FakeSandbox
from support.in_process_worker import InProcessWorker
from temporalio.service import RPCError

from benchflow.contracts import temporal_names
from benchflow.contracts.images import ImageRef
from benchflow.contracts.rollout_records import Answer, TurnResult
from benchflow.hosting import reporting
from benchflow.hosting.hosted_turn import HostedTurn
from benchflow.jobs import Job
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import NodeWriter


async def starting(worker: InProcessWorker) -> bool:
    return worker.provider.starting > 0


async def test_a_cancelled_rollout_goes_no_further_than_the_activity_that_it_is_in(worker: InProcessWorker) -> None:
    """Also where the activity ends well all the same, as if nobody had asked."""
    worker.provider.stubborn_start = asyncio.Event()
    job = await worker.submit()
    await until(lambda: starting(worker))
    await job.cancel()

    async def asked() -> bool:
        events = await worker.events(job, "/r/play/oracle/0")
        return "EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED" in events

    await until(asked)
    worker.provider.stubborn_start.set()
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    assert result.error is not None and result.error.phase == "provision"
    assert not worker.provider.turns
    assert not worker.provider.open
    assert "connect" not in result.timing


class Deaf:
    """Work that ends well once it is let go of, although it was cancelled meanwhile."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self._may_end = asyncio.Event()

    async def work(self) -> None:
        self.has_begun.set()
        while not self._may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._may_end.wait()

    async def cancel(self, worker: InProcessWorker, job: Job) -> None:
        """Let go of the work once it has heard of the cancellation of its rollout."""
        await self.has_begun.wait()
        await job.cancel()

        async def is_asked() -> bool:
            return "EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED" in await worker.events(job, "/r/play/oracle/0")

        await until(is_asked)
        self._may_end.set()


async def test_nobody_is_waited_for_whom_an_agent_asks_as_its_rollout_is_cancelled(worker: InProcessWorker) -> None:
    deaf = Deaf()
    ask(worker, [question("q", "yes")])
    asking = HostedTurn._act

    async def act(turn: HostedTurn, writer: NodeWriter) -> TurnResult:
        await deaf.work()
        return await asking(turn, writer)

    worker.patch.setattr(HostedTurn, "_act", act)
    job = await worker.submit()
    await deaf.cancel(worker, job)
    try:
        async with asyncio.timeout(20):
            (result,) = await worker.results(job)
    finally:
        # One that waits after all goes on.
        with contextlib.suppress(RPCError):
            rollout = job.engine.client.get_workflow_handle(job.id + "/r/play/oracle/0")
            await rollout.signal(temporal_names.ANSWER, Answer(question="q", option="yes"))
    assert (result.status, result.rewards) == ("cancelled", None)
    assert not worker.provider.open


async def test_no_child_begins_at_a_checkpoint_that_is_taken_as_its_rollout_is_cancelled(
    worker: InProcessWorker,
) -> None:
    deaf = Deaf()
    snapshot = _FakeSandbox.snapshot

    async def take(seat: _FakeSandbox, name: str) -> ImageRef:
        await deaf.work()
        return await snapshot(seat, name)

    worker.patch.setattr(_FakeSandbox, "snapshot", take)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}
    job = await worker.submit(worker.stepped(2), branch=branch)
    await deaf.cancel(worker, job)
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    events = await worker.events(job, "/r/play/oracle/0")
    assert "EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED" not in events
    assert not worker.provider.open


async def test_a_rollout_that_reaches_its_deadline_is_an_error_and_measures_nothing(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(deadline_sec=3)
    (result,) = await worker.results(job)
    assert (result.status, result.rewards, result.is_truncated) == ("errored", None, True)
    assert result.error is not None
    # It is in its turn by then, unless the machine is so busy that it has not come to that.
    assert (result.error.type, result.error.phase) == ("RolloutDeadlineError", [*result.timing][-1])
    assert [*result.timing] == ["plan", "provision", "connect", "execute"][: len(result.timing)]
    assert not worker.provider.open
    assert job.summarize().errors == {"deadline": 1}


async def test_a_cancellation_ends_the_collecting_and_not_the_result(worker: InProcessWorker) -> None:
    """However much a sandbox sends: what was measured by then counts."""
    worker.provider.holds_artifacts = True
    job = await worker.submit()
    await until(lambda: is_collecting(worker))
    await job.cancel()
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    assert any("not all collected" in warning for warning in result.warnings)
    assert not worker.provider.open


async def test_of_a_cancelled_rollout_is_collected_what_comes_soon(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "AFTER_CANCEL_SEC", 0.1)
    worker.provider.holds_artifacts = worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    await job.cancel()
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("cancelled", None)
    assert worker.provider.collecting == 1
    assert any("after the cancellation" in warning for warning in result.warnings)


async def is_collecting(worker: InProcessWorker) -> bool:
    return worker.provider.collecting > 0


async def test_a_terminated_rollout_still_has_a_row(worker: InProcessWorker) -> None:
    worker.options(sweep_every_sec=0.3, sweep_after_sec=0)
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=2)
    victim, other = await worker.in_turn(2)
    await job.engine.client.get_workflow_handle(victim).terminate()
    await worker.progress(job, lambda p: p.counts.errored == 1)
    worker.provider.release_all()
    results = {result.workflow_id: result for result in await worker.results(job)}
    assert results[other].status == "passed"
    assert (results[victim].status, results[victim].rewards) == ("errored", None)
    assert results[victim].error_category == "terminated"


async def test_a_report_that_ran_out_of_time_is_written_where_the_sandbox_is(worker: InProcessWorker) -> None:
    """An outage may have taken the time."""
    worker.options(report_total_sec=1)
    worker.provider.holds_artifacts = True
    job = await worker.submit()
    await until(lambda: is_collecting(worker))
    worker.provider.holds_artifacts = False
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    assert result.sandbox["name"] and result.warnings == []
