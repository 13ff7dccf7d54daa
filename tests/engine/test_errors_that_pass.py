"""What passes is tried again and leaves no trace in the result. What does not is final and is named in the result.

The worker of these tests takes an unknown error for final at the third attempt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.idle_sandbox import IdleSandbox
from support.in_process_worker import InProcessWorker
from support.relay import Relay
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from benchflow import errors
from benchflow.activities.boundary import BoundaryInterceptor
from benchflow.activities.job_activities import JobActivities
from benchflow.contracts.activities import HostQuery, HostStatus
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.temporal import connect
from benchflow.testing.waiting import until


def away() -> errors.BenchFlowError:
    return errors.DaemonUnavailableError("no Docker daemon answers")


async def test_unknown_errors_that_pass_leave_no_trace(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = [RuntimeError("odd"), KeyError("reward")]
    (result,) = await worker.results(await worker.submit())
    assert (result.status, result.attempt, result.error, result.warnings) == ("passed", 1, None, [])
    assert sum(worker.provider.turns.values()) == 3


async def test_an_unknown_error_that_stays_is_final_and_a_job_may_run_the_rollout_again(
    worker: InProcessWorker,
) -> None:
    worker.provider.faults["play"] = [RuntimeError("a bug") for _ in range(3)]
    job = await worker.submit(retry={"min_wait_sec": 0.01, "categories": ["internal"]})
    (result,) = await worker.results(job)
    assert (result.status, result.attempt) == ("passed", 2)
    assert sum(worker.provider.turns.values()) == 4


async def test_attempts_are_counted_however_long_they_take_and_outages_are_not(worker: InProcessWorker) -> None:
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.05)
    bug = RuntimeError("a bug")
    worker.provider.faults["play"] = [bug, away(), away(), away(), bug, bug, bug]
    worker.provider.held = True
    job = await worker.submit()
    rollout = job.engine.client.get_workflow_handle(job.spec.rollout_id(job.id, 0))

    async def has_beaten() -> bool:
        description = (await rollout.describe()).raw_description
        return any(
            pending.last_heartbeat_time.ToNanoseconds() > pending.last_started_time.ToNanoseconds()
            for pending in description.pending_activities
        )

    for attempt in range(6):
        await worker.begun(attempt + 1)
        (name,) = await worker.in_turn(1)
        await until(has_beaten)
        worker.provider.release(name)
    # If there were a seventh attempt, it would end, and an eighth would pass.
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert result.error is not None
    assert (result.status, result.error.category, result.error.retryable) == ("errored", "internal", True)
    assert len(worker.provider.faults["play"]) == 1


async def test_a_server_that_does_not_answer_an_activity_is_an_outage(worker: InProcessWorker) -> None:
    """For example when the job asks after a host, which it does just when the network is in trouble."""
    async with Relay.to(worker.target.address) as relay:
        client = await connect(replace(worker.target, address=f"127.0.0.1:{relay.port}"))
        relay.close()
    asking = JobActivities(replace(worker.context, client=client))

    class Asking(ActivityInboundInterceptor):
        async def execute_activity(self, input: ExecuteActivityInput) -> HostStatus:
            return await asking.host_status(*input.args)

    around = BoundaryInterceptor(worker.records, worker.ongoing_work(), WorkerOptions(max_failures=1))
    boundary = around.intercept_activity(Asking(around))  # type: ignore[arg-type]
    asked = ExecuteActivityInput(asking.host_status, [HostQuery(queue="benchflow-host-x")], None, {})
    with pytest.raises(ApplicationError) as raised:
        await ActivityEnvironment(client).run(boundary.execute_activity, asked)
    assert (raised.value.type, raised.value.non_retryable) == ("ServerUnavailableError", False)


async def test_the_server_shows_why_an_activity_is_retried_however_much_there_is_to_say(
    worker: InProcessWorker,
) -> None:
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.05)
    wordy = errors.DaemonUnavailableError("é" * 50_000, remedy="mend it" * 5000, log_tail="line\n" * 5000)
    wordy.__cause__ = RuntimeError("why" * 50_000)
    worker.provider.faults["play"] = [wordy] * 1000
    job = await worker.submit()

    async def trouble() -> str | None:
        return await job.trouble(job.spec.rollout_id(job.id, 0))

    shown = await until(trouble)
    assert "DaemonUnavailableError: éé" in shown
    worker.provider.held, worker.provider.faults["play"] = True, []
    await worker.in_turn(1)

    async def says_that_it_runs() -> bool:
        return "runs; the last: DaemonUnavailableError: éé" in (await trouble() or "")

    await until(says_that_it_runs)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.status, result.error) == ("passed", None)


async def test_a_reward_of_the_steps_before_an_error_of_the_engine_does_not_count(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(worker.stepped(2), retry={"max_retries": 0})
    (name,) = await worker.in_turn(1)
    worker.provider.release(name)
    await worker.begun(2)
    await worker.in_turn(1)
    worker.provider.faults["play"] = [errors.SandboxError("an engine's own trouble")]
    worker.provider.release(name)
    (result,) = await worker.results(job)
    assert [step.verify.reward for step in result.steps if step.verify is not None] == [1.0]
    assert (result.status, result.rewards, result.error_category) == ("errored", None, "sandbox")


async def test_a_turn_that_the_engine_has_stopped_is_not_scored_but_run_again(worker: InProcessWorker) -> None:
    """An attempt noted that it stops the agent, and its rollout goes on: the end says nothing of the agent."""
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    (sandbox,) = worker.provider.open
    sessions = worker.context.paths.sessions / sandbox
    sessions.mkdir(parents=True, exist_ok=True)
    (sessions / "turn-0.stopped").touch()
    run = IdleSandbox.exec_once

    async def killed(self: IdleSandbox, key: str, cmd: Sequence[str], **options: Any) -> SandboxExecResult:
        ended = await run(self, key, cmd, **options)
        is_stopped = (self.ref.name, key) == (sandbox, "turn-0")
        return SandboxExecResult(return_code=137) if is_stopped else ended

    worker.patch.setattr(IdleSandbox, "exec_once", killed)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    first = json.loads((Path(str(result.directory)) / "attempts" / "1" / "result.json").read_text())
    assert (first["status"], first["rewards"], first["error"]["type"]) == ("errored", None, "StackError")
    assert "the engine stopped the" in first["error"]["message"]
    assert (result.status, result.attempt, result.error) == ("passed", 2, None)
    assert worker.provider.verified.total() == 1
