"""What the server knows of a workflow beside its result: the pack that it reported, and what it fails at."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, NamedTuple

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, TaskQueueType
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from benchflow.contracts import names
from benchflow.contracts.activities import ReportResult
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.failures import MAX_LINE, error_type
from benchflow.contracts.rollout import RolloutOutcome
from benchflow.errors import BenchFlowError, ServerUnavailableError

NOT_ENCODED = "Failed encoding completion: "
"""Begins, in the SDK (temporalio 1.35), the failure of a workflow task whose commands could not be encoded. It has no
type; that of the error follows as text, which `BulkCodec` adds.
"""


def is_not_found(error: RPCError) -> bool:
    """Tell whether the server has answered that there is no such workflow, activity or run.

    A server that has not loaded its namespaces yet says "not found" of all that it has; that does not count.
    """
    is_namespace = any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)
    return error.status == RPCStatusCode.NOT_FOUND and not is_namespace


def require_not_found(error: RPCError) -> None:
    """Return if the server has answered that there is no such workflow.

    Raises:
        ServerUnavailableError: It has not.
    """
    if not is_not_found(error):
        raise ServerUnavailableError(f"the Temporal server does not answer: {error.message}") from error


async def last_poll(client: Client, queue: str) -> float | None:
    """Return when a worker last asked for work of a queue, as a timestamp; None for no worker that the server knows."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    response = await client.workflow_service.describe_task_queue(request, retry=True)
    return max((poller.last_access_time.ToNanoseconds() / 1e9 for poller in response.pollers), default=None)


# --- what was reported ---------------------------------------------------------------------------------------


async def find_pack(client: Client, rollout: str) -> ArtifactRef | None:
    """Return the pack of a rollout that has reported; None before, when it left none, or if there is no such workflow.

    Raises:
        ServerUnavailableError: It could not be asked.
        BenchFlowError: As `read_outcome`.
    """
    handle: WorkflowHandle[object, RolloutOutcome] = client.get_workflow_handle(rollout, result_type=RolloutOutcome)
    try:
        if (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED:
            outcome, why = await read_outcome(handle)
            if outcome is not None:
                return outcome.pack
            # Imported here: it takes a tenth of what every command takes to start, and few ever log.
            import structlog

            log = structlog.get_logger("benchflow.executions")
            log.warning("the outcome of a rollout can't be read; its report is looked for", id=rollout, error=why)
        return await _reported_pack(client, handle)
    except RPCError as error:
        require_not_found(error)
        return None


async def read_outcome(handle: WorkflowHandle[Any, RolloutOutcome]) -> tuple[RolloutOutcome | None, str]:
    """Return the outcome of a completed rollout; None, and why, if it can't be read, now or later.

    Raises:
        RPCError: The server could not be asked.
        WorkflowFailureError: It has failed.
        BenchFlowError: One that passes: its bulk is in a store that is away.
    """
    try:
        return await handle.result(), ""
    except (WorkflowFailureError, RPCError):
        raise
    except Exception as error:
        if isinstance(error, BenchFlowError) and error.retryable:
            raise
        return None, f"{type(error).__name__}: {error}"[:MAX_LINE]


async def _reported_pack(client: Client, handle: WorkflowHandle[object, RolloutOutcome]) -> ArtifactRef | None:
    """Return what a report left of a workflow without a result: a cancelled one has none, but reports."""
    reports: set[int] = set()
    async for event in handle.fetch_history_events():
        if _schedules_report(event):
            reports.add(event.event_id)
        completed = event.activity_task_completed_event_attributes
        if completed.scheduled_event_id in reports:
            (said,) = await client.data_converter.decode(completed.result.payloads, [ReportResult])
            return ReportResult.model_validate(said).pack
    return None


def _schedules_report(event: HistoryEvent) -> bool:
    kind = event.activity_task_scheduled_event_attributes.activity_type.name
    return kind in (names.REPORT, names.REPORT_WITHOUT_SANDBOX)


# --- what fails and is retried -------------------------------------------------------------------------------


class FailingTask(NamedTuple):
    """A workflow task that fails, and is tried again for as long as it does."""

    workflow_id: str

    attempts: int
    since: float
    """Seconds since the epoch."""

    reason: str
    """Why the newest attempt that the history tells of has failed."""

    may_pass: bool
    """Whether it failed for an error that passes, such as a full disk where a large message was to be stored."""

    @property
    def age_sec(self) -> float:
        """Return the seconds for which it has failed."""
        return max(0.0, time.time() - self.since)

    def is_stuck(self, attempts: int, after_sec: float) -> bool:
        """Tell whether it has failed so often, and for so long, that it never ends."""
        return not self.may_pass and self.attempts >= attempts and self.age_sec >= after_sec


async def failing_tasks(client: Client, described: WorkflowExecutionDescription) -> list[FailingTask]:
    """Return the workflow tasks that a running workflow, and its children and theirs, fail at."""
    own = await _failing_task(client, described)
    found = [own] if own is not None else []
    for child in described.raw_description.pending_children:
        try:
            below = await client.get_workflow_handle(child.workflow_id).describe()
        except RPCError as error:
            require_not_found(error)
            continue
        if below.status == WorkflowExecutionStatus.RUNNING:
            found += await failing_tasks(client, below)
    return found


async def _failing_task(client: Client, described: WorkflowExecutionDescription) -> FailingTask | None:
    """Return the workflow task that a workflow fails at; None if none fails.

    A task that timed out counts as none: its workers died, or none is there. That is no fault of the workflow.
    """
    pending = described.raw_description.pending_workflow_task
    if pending.attempt < 2:
        return None
    history = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=described.id, run_id=described.run_id),
            maximum_page_size=20,
        ),
        retry=True,
    )
    for event in history.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failure = event.workflow_task_failed_event_attributes.failure
            kind = _type(failure)
            if failure.message.startswith(NOT_ENCODED):
                kind = failure.message.removeprefix(NOT_ENCODED).partition(":")[0]
            may_pass = error_type(kind).is_outage
            since = pending.original_scheduled_time.ToNanoseconds() / 1e9
            return FailingTask(described.id, pending.attempt, since, _text(failure), may_pass)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            return None
    return None


async def end_stuck(client: Client, workflow_id: str, first_run_id: str | None = None) -> None:
    """Terminate a workflow whose tasks fail for ever, unless it has ended."""
    handle = client.get_workflow_handle(workflow_id, first_execution_run_id=first_run_id)
    try:
        await handle.terminate("its workflow tasks fail again and again")
    except RPCError as error:
        require_not_found(error)


async def find_trouble(client: Client, workflow_id: str) -> str | None:
    """Return what a workflow fails at and retries, as a line: a workflow task, else an activity; None for nothing.

    Raises:
        ServerUnavailableError: The server could not be asked.
    """
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
        if described.status != WorkflowExecutionStatus.RUNNING:
            return None
        failing = await failing_tasks(client, described)
    except RPCError as error:
        require_not_found(error)
        return None
    if failing:
        first = failing[0]
        whose = "" if first.workflow_id == workflow_id else " of a child"
        return f"workflow task{whose}, attempt {first.attempts}, for {first.age_sec:.0f} s: {first.reason}"
    for activity in described.raw_description.pending_activities:
        if activity.attempt > 1 and activity.HasField("last_failure"):
            attempt = f"{activity.activity_type.name}, attempt {activity.attempt}"
            runs = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            return f"{attempt}{' runs; the last' if runs else ''}: {_text(activity.last_failure)}"
    return None


def _type(failure: Failure) -> str:
    return failure.application_failure_info.type


def _text(failure: Failure) -> str:
    """Return the type of a failure, the file that it is about, and its message, as a line."""
    kind = _type(failure)
    with suppress(IndexError, ValueError, AttributeError):
        if file := json.loads(failure.application_failure_info.details.payloads[0].data).get("file"):
            return f"{kind}: {file}: {failure.message}"[:MAX_LINE]
    text = f"{kind}: {failure.message}" if kind and not failure.message.startswith(kind) else failure.message
    return text[:MAX_LINE]
