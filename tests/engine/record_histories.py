"""Record the histories that `test_replay.py` replays.

Run it by name, after a deliberate change:

    python -m pytest tests/engine/record_histories.py

Before the first release a change of the workflows may record anew; afterwards histories are only added, because runs
of that release are replayed by the workers of the next.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow import errors
from benchflow.jobs import Job
from benchflow.testing.waiting import until

HISTORIES = Path(__file__).parent / "histories"
ROLLOUT = "/r/play/oracle/0"

_BARE = {
    "activityTaskScheduledEventAttributes": ("input", "taskQueue"),
    "startChildWorkflowExecutionInitiatedEventAttributes": ("input", "taskQueue"),
    "signalExternalWorkflowExecutionInitiatedEventAttributes": ("input",),
    "workflowTaskScheduledEventAttributes": ("taskQueue",),
    "workflowExecutionCompletedEventAttributes": ("result",),
}
"""What a workflow sends is computed again in a replay; only what it was sent decides what it does."""

_DROPPED = frozenset(
    """
    heartbeatTimeout header headers historySizeBytes identity lastWorkerIdentity memo meteringMetadata priority
    requestId retryPolicy scheduleToCloseTimeout scheduleToStartTimeout searchAttributes stackTrace startToCloseTimeout
    taskId useWorkflowBuildId userMetadata workerVersion workflowTaskCompletedEventId
    """.split()  # noqa: SIM905
)
_EMPTIED = ("indexedFields",)
_TIMED = ("EVENT_TYPE_WORKFLOW_EXECUTION_STARTED", "EVENT_TYPE_WORKFLOW_TASK_STARTED")
"""The events whose time a workflow can see."""


@pytest.fixture(autouse=True)
def recorded_options(worker: InProcessWorker) -> None:
    """The options that the recorded jobs begin with; they are in the histories."""
    worker.options(history_limit=40, host_start_timeout_sec=0.5)


def without_traces_of_this_machine(value: Any, root: str) -> Any:
    """The history without what depends on who recorded it (identities, paths, stack traces), and without bulk."""
    if isinstance(value, list):
        return [without_traces_of_this_machine(item, root) for item in value]
    if isinstance(value, str):
        return value.replace(root, "/tmp/bench")
    if not isinstance(value, dict):
        return value
    clean: dict[str, Any] = {}
    for key, item in value.items():
        if key in _EMPTIED:
            clean[key] = {}
        elif key == "data" and isinstance(item, str) and "metadata" in value:
            text = base64.b64decode(item).decode().replace(root, "/tmp/bench")
            clean[key] = base64.b64encode(text.encode()).decode()
        elif key == "eventTime" and value["eventType"] not in _TIMED:
            continue
        elif key not in _DROPPED:
            clean[key] = without_traces_of_this_machine(item, root)
            for bulk in _BARE.get(key, ()):
                clean[key].pop(bulk, None)
    return clean


class Recorder:
    def __init__(self, worker: InProcessWorker) -> None:
        self.worker = worker

    async def keep(self, name: str, job: Job, rollout: str = "", *, run_id: str | None = None) -> str | None:
        """Write the history of a run; the id of the run that it continued as."""
        workflow_id = job.id + rollout
        handle = job.engine.client.get_workflow_handle(workflow_id, run_id=run_id)
        history = await handle.fetch_history()
        raw = without_traces_of_this_machine(json.loads(history.to_json()), str(self.worker.root))
        text = json.dumps({"workflow_id": workflow_id, "history": raw}, indent=None, separators=(",", ":"))
        assert not re.search(r"pytest|/root|/home|/work", text)
        HISTORIES.mkdir(exist_ok=True)
        (HISTORIES / f"{name}.json").write_text(text + "\n")
        last = history.events[-1].workflow_execution_continued_as_new_event_attributes
        return last.new_execution_run_id or None

    async def keep_runs(self, name: str, job: Job) -> int:
        """Write the history of every run of a job; their number."""
        described = await job.engine.client.get_workflow_handle(job.id).describe()
        run: str | None = described.raw_description.workflow_execution_info.first_run_id
        number = 0
        while run:
            number += 1
            run = await self.keep(f"{name}-{number}", job, run_id=run)
        return number


@pytest.fixture
async def recorder(worker: InProcessWorker) -> AsyncIterator[Recorder]:
    yield Recorder(worker)


async def test_a_rollout_that_passes(worker: InProcessWorker, recorder: Recorder) -> None:
    job = await worker.submit()
    await job.wait()
    await recorder.keep("rollout-passed", job, ROLLOUT)


async def test_a_rollout_of_steps_that_stops_below_its_min_reward(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.reward = b"0.25"
    steps = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nmin_reward = 0.5\n[[steps]]\nname = "three"\n'
    health = '[environment.healthcheck]\ncommand = "true"\n'
    task = worker.task(config=steps)
    (task / "task.toml").write_text((task / "task.toml").read_text() + health)
    for name in ("one", "two", "three"):
        (task / "steps" / name / "solution").mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text("Play on.\n")
        (task / "steps" / name / "solution" / "solve.sh").write_text("#!/bin/sh\n")
    job = await worker.submit(task)
    await job.wait()
    await recorder.keep("rollout-steps", job, ROLLOUT)


async def test_a_rollout_that_cannot_be_scored(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.reward = b"NaN"
    job = await worker.submit()
    await job.wait()
    await recorder.keep("rollout-verifier-error", job, ROLLOUT)


async def test_a_rollout_whose_sandbox_is_lost(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.faults["play"] = [errors.SandboxLostError("gone")]
    job = await worker.submit(retry={"max_retries": 0})
    await job.wait()
    await recorder.keep("rollout-sandbox-lost", job, ROLLOUT)


async def test_a_rollout_that_is_cancelled(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    await job.cancel()
    await job.wait()
    await recorder.keep("rollout-cancelled", job, ROLLOUT)
    await recorder.keep("job-cancelled", job)


async def test_a_rollout_that_is_cancelled_in_the_moment_in_which_its_sandbox_is_there(
    worker: InProcessWorker, recorder: Recorder
) -> None:
    """The workflow learns of both at once, which takes some tries."""
    at_once = [
        f"EVENT_TYPE_{name}"
        for name in ("ACTIVITY_TASK_COMPLETED", "WORKFLOW_TASK_SCHEDULED", "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    ]
    for number in range(100):
        worker.provider.stubborn_start, worker.provider.starting = asyncio.Event(), 0
        job = await worker.submit(job_name=f"show-{number}")
        await until(lambda: worker.provider.starting == 1)
        worker.provider.stubborn_start.set()
        await job.engine.client.get_workflow_handle(job.id + ROLLOUT).cancel()
        await job.wait()
        events = await worker.events(job, ROLLOUT)
        if any(events[start : start + 3] == at_once for start in range(len(events))):
            await recorder.keep("rollout-cancelled-as-provisioned", job, ROLLOUT)
            return
    pytest.fail("the two never arrived at once")


async def test_a_rollout_that_reaches_its_deadline(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.held = True
    job = await worker.submit(deadline_sec=0.5)
    await job.wait()
    await recorder.keep("rollout-deadline", job, ROLLOUT)


async def test_a_rollout_whose_host_is_lost(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.elsewhere["play"] = ["benchflow-host-nobody"]
    job = await worker.submit()
    await job.wait()
    await recorder.keep("rollout-host-lost", job, ROLLOUT)


async def test_a_job_with_a_retry_signals_and_several_runs(worker: InProcessWorker, recorder: Recorder) -> None:
    worker.provider.faults["play"] = [errors.SandboxLostError("gone")]
    worker.provider.held = True
    job = await worker.submit(repeats=5, concurrency=2)
    await worker.in_turn(2)
    await job.pause()
    await job.set_concurrency(3)
    await job.unpause()
    victim = (await worker.in_turn(3))[2]
    await job.cancel_rollout(victim)
    await worker.progress(job, lambda p: p.counts.cancelled == 1)
    worker.provider.release_all()
    await job.wait()
    assert await recorder.keep_runs("job-runs", job) > 1


async def test_a_rollout_that_branches_in_one_slot(worker: InProcessWorker, recorder: Recorder) -> None:
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "then": "itself"}
    job = await worker.submit(worker.stepped(2), concurrency=1, branch=branch)
    await job.wait()
    await recorder.keep("rollout-branched", job, ROLLOUT)
    await recorder.keep_runs("job-branched", job)
