"""Where the results of a cluster's rollouts lie in the store, however their workflows ended."""

from __future__ import annotations

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from benchflow.contracts import names
from benchflow.contracts.activities import ReportResult
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.rollout import RolloutOutcome


async def find_pack(client: Client, rollout: str) -> ArtifactRef | None:
    """The pack of a rollout that has reported, though it may not be closed yet; None before, and when it left none."""
    handle: WorkflowHandle[object, RolloutOutcome] = client.get_workflow_handle(rollout, result_type=RolloutOutcome)
    try:
        status = (await handle.describe()).status
        if status == WorkflowExecutionStatus.COMPLETED:
            return (await handle.result()).pack
        return await _reported_pack(client, handle)
    except RPCError:
        return None


async def _reported_pack(client: Client, handle: WorkflowHandle[object, RolloutOutcome]) -> ArtifactRef | None:
    """What a report said of a workflow without a result: a cancelled one has none, but reports."""
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
