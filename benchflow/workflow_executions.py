"""State of workflows as the server has it, beside their results: reported packs, and failures that are retried."""

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

from benchflow.contracts import temporal_names
from benchflow.contracts.activities import ReportResult
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.failures import MAX_LINE, error_type
from benchflow.contracts.rollout_records import RolloutOutcome
from benchflow.errors import BenchFlowError, ServerUnavailableError

NOT_ENCODED = "Failed encoding completion: "
"""Prefix, in the SDK (temporalio 1.35), of the failure of a workflow task whose commands could not be encoded. The
failure has no type; the error's type follows in the text, added by `BulkCodec`.
"""


def is_not_found(error: RPCError) -> bool:
    """Return whether the server has responded that there is no such workflow, activity or run.

    A server that has not loaded its namespaces yet responds "not found" to every request; that does not count.
    """
    is_namespace = any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)
    return error.status == RPCStatusCode.NOT_FOUND and not is_namespace


def require_not_found(error: RPCError) -> None:
    """Return if the server has responded that there is no such workflow; otherwise raise.

    Raises:
        ServerUnavailableError: The error is any other.
    """
    if not is_not_found(error):
        raise ServerUnavailableError(f"the Temporal server does not answer: {error.message}") from error


async def find_last_poll(client: Client, queue: str) -> float | None:
    """Return the timestamp of the last poll of a queue for activities; None if the server knows no worker of it."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    response = await client.workflow_service.describe_task_queue(request, retry=True)
    return max((poller.last_access_time.ToNanoseconds() / 1e9 for poller in response.pollers), default=None)


# --- what was reported ---------------------------------------------------------------------------------------


async def find_pack(client: Client, rollout: str) -> ArtifactRef | None:
    """Return the pack that a rollout has reported; None if it has not, has left none, or if there is no such workflow.

    Raises:
        ServerUnavailableError: The server does not answer.
        BenchFlowError: As from `read_outcome`.
    """
    handle: WorkflowHandle[object, RolloutOutcome] = client.get_workflow_handle(rollout, result_type=RolloutOutcome)
    try:
        if (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED:
            outcome, why = await read_outcome(handle)
            if outcome is not None:
                return outcome.pack
            # Imported here: the import is a tenth of every command's start time, and few commands ever log.
            import structlog

            log = structlog.get_logger("benchflow.workflow_executions")
            log.warning("the outcome of a rollout can't be read; its report is looked for", id=rollout, error=why)
        return await _find_reported_pack(client, handle)
    except RPCError as error:
        require_not_found(error)
        return None


async def read_outcome(handle: WorkflowHandle[Any, RolloutOutcome]) -> tuple[RolloutOutcome | None, str]:
    """Return the outcome of a completed rollout, and ""; or None and the reason, if it can never be read.

    Raises:
        RPCError: The server does not answer.
        WorkflowFailureError: The workflow has failed.
        BenchFlowError: The outcome's bulk is in a store that is unavailable now; a retry may succeed.
    """
    try:
        return await handle.result(), ""
    except (WorkflowFailureError, RPCError):
        raise
    except Exception as error:
        if isinstance(error, BenchFlowError) and error.retryable:
            raise
        return None, f"{type(error).__name__}: {error}"[:MAX_LINE]


async def _find_reported_pack(client: Client, handle: WorkflowHandle[object, RolloutOutcome]) -> ArtifactRef | None:
    """Return the pack of a report in the history of a workflow without a result: a cancelled workflow reports, too."""
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
    """Return whether an event of a history schedules the report of a rollout."""
    kind = event.activity_task_scheduled_event_attributes.activity_type.name
    return kind in (temporal_names.REPORT, temporal_names.REPORT_WITHOUT_SANDBOX)


# --- what fails and is retried -------------------------------------------------------------------------------


class FailingTask(NamedTuple):
    """Workflow task that fails, and that the server retries for ever."""

    workflow_id: str

    attempts: int
    since: float
    """When the task was first scheduled, in seconds since the epoch."""

    reason: str
    """Failure of the newest attempt that the history has."""

    may_pass: bool
    """Whether the failure is transient, such as a full disk when a large message was to be stored."""

    @property
    def age_sec(self) -> float:
        """Return the seconds since the task was first scheduled."""
        return max(0.0, time.time() - self.since)

    def is_stuck(self, attempts: int, after_sec: float) -> bool:
        """Return whether it fails so often, and for so long, that it never succeeds; False for a transient failure.

        Args:
            attempts: Minimum number of attempts.
            after_sec: Minimum number of seconds.
        """
        return not self.may_pass and self.attempts >= attempts and self.age_sec >= after_sec


async def find_failing_tasks(client: Client, described: WorkflowExecutionDescription) -> list[FailingTask]:
    """Return the failing workflow tasks of a running workflow and of its running descendants."""
    own = await _find_failing_task(client, described)
    found = [own] if own is not None else []
    for child in described.raw_description.pending_children:
        try:
            below = await client.get_workflow_handle(child.workflow_id).describe()
        except RPCError as error:
            require_not_found(error)
            continue
        if below.status == WorkflowExecutionStatus.RUNNING:
            found += await find_failing_tasks(client, below)
    return found


async def _find_failing_task(client: Client, described: WorkflowExecutionDescription) -> FailingTask | None:
    """Return the failing workflow task of a workflow; None if none fails.

    A task that timed out does not count: its workers died, or there are none, which is no fault of the workflow.
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
            kind = _read_type(failure)
            if failure.message.startswith(NOT_ENCODED):
                kind = failure.message.removeprefix(NOT_ENCODED).partition(":")[0]
            may_pass = error_type(kind).is_outage
            since = pending.original_scheduled_time.ToNanoseconds() / 1e9
            return FailingTask(described.id, pending.attempt, since, _format_failure(failure), may_pass)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            return None
    return None


async def end_stuck(client: Client, workflow_id: str, first_run_id: str | None = None) -> None:
    """Terminate a workflow whose tasks fail for ever; one that has ended is success.

    Args:
        client: Client of the server.
        workflow_id: The workflow.
        first_run_id: Run id of its first run; None for whichever run is open.
    """
    handle = client.get_workflow_handle(workflow_id, first_execution_run_id=first_run_id)
    try:
        await handle.terminate("its workflow tasks fail again and again")
    except RPCError as error:
        require_not_found(error)


async def find_trouble(client: Client, workflow_id: str) -> str | None:
    """Return, as a line, the failure that a workflow retries: of a workflow task, else of an activity; None for none.

    Raises:
        ServerUnavailableError: The server does not answer.
    """
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
        if described.status != WorkflowExecutionStatus.RUNNING:
            return None
        failing = await find_failing_tasks(client, described)
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
            return f"{attempt}{' runs; the last' if runs else ''}: {_format_failure(activity.last_failure)}"
    return None


def _read_type(failure: Failure) -> str:
    return failure.application_failure_info.type


def _format_failure(failure: Failure) -> str:
    """Return a failure as a line: its type, the file that it concerns, its message."""
    kind = _read_type(failure)
    with suppress(IndexError, ValueError, AttributeError):
        if file := json.loads(failure.application_failure_info.details.payloads[0].data).get("file"):
            return f"{kind}: {file}: {failure.message}"[:MAX_LINE]
    text = f"{kind}: {failure.message}" if kind and not failure.message.startswith(kind) else failure.message
    return text[:MAX_LINE]
