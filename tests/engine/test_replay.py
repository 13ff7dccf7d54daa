"""Recorded histories replay against the workflows of today: a worker may take over what another version began."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from record_histories import HISTORIES
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.errors import BenchFlowError
from benchflow.messages import make_converter
from benchflow.worker import make_workflow_runner
from benchflow.workflows.job_workflow import JobWorkflow
from benchflow.workflows.rollout_workflow import RolloutWorkflow

FILES = sorted(HISTORIES.glob("*.json"))


@pytest.fixture(autouse=True)
def another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option of this process is another one than the recorded workflows began with."""
    for name, field in WorkflowOptions.model_fields.items():
        monkeypatch.setenv(WorkflowOptions.variables()[name], str(field.default + 7))
    assert WorkflowOptions.from_environment(os.environ) != WorkflowOptions()


def replayer() -> Replayer:
    return Replayer(
        workflows=[JobWorkflow, RolloutWorkflow],
        data_converter=make_converter(),
        workflow_runner=make_workflow_runner(),
        workflow_failure_exception_types=[BenchFlowError],
    )


def read(file: Path) -> WorkflowHistory:
    recorded = json.loads(file.read_text())
    return WorkflowHistory.from_json(recorded["workflow_id"], recorded["history"])


async def test_a_job_continues_as_new_where_its_own_options_say_so() -> None:
    """The history limit that decides is the one that was submitted, 40 events, not this process's."""
    first = json.loads((HISTORIES / "job-runs-1.json").read_text())
    started = first["history"]["events"][0]["workflowExecutionStartedEventAttributes"]
    job = json.loads(base64.b64decode(started["input"]["payloads"][0]["data"]))
    assert job["options"]["history_limit"] == 40
    assert first["history"]["events"][-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW"
    job["options"]["history_limit"] = 3000
    payload = base64.b64encode(json.dumps(job).encode()).decode()
    started["input"]["payloads"][0]["data"] = payload
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(WorkflowHistory.from_json(first["workflow_id"], first["history"]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_recorded_history_replays(file: Path) -> None:
    await replayer().replay_workflow(read(file))


async def test_a_workflow_that_does_otherwise_would_be_noticed() -> None:
    recorded = json.loads((HISTORIES / "rollout-passed.json").read_text())
    for event in recorded["history"]["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes", {})
        if scheduled.get("activityType") == {"name": "verify"}:
            scheduled["activityType"] = {"name": "connect"}
    history = WorkflowHistory.from_json(recorded["workflow_id"], recorded["history"])
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history)


def test_the_stories_are_there_and_small() -> None:
    assert {"rollout-passed", "rollout-cancelled", "rollout-host-lost", "rollout-branched", "job-runs-1"} <= {
        file.stem for file in FILES
    }
    assert sum(file.stat().st_size for file in FILES) < 300_000
