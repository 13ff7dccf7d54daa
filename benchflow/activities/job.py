"""The activities of a job: naming its rollouts, asking after them, finishing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from benchflow import secrets
from benchflow.activities.context import WorkerContext
from benchflow.activities.sandboxes import release_sandbox, shared_sandbox
from benchflow.contracts import names
from benchflow.contracts.activities import (
    Batch,
    BatchInput,
    FinishJob,
    HostQuery,
    HostStatus,
    OpenRollouts,
    RolloutState,
    RolloutStates,
)
from benchflow.contracts.job import JobSpec, Origin, RolloutSpec
from benchflow.contracts.rollout import RolloutOutcome
from benchflow.errors import SandboxUnavailableError, ServerUnavailableError
from benchflow.paths import JobPaths
from benchflow.planes.sandbox import get_provider
from benchflow.results.summary import write_summary

BATCH_BYTES = 48 * 1024
"""Of rollouts that are named at once; a payload takes a third more."""


def rollout_spec(spec: JobSpec, job_id: str, origin: Origin, index: int, *, run_id: str = "") -> RolloutSpec:
    """The rollout number `index` of a job. run_id: of the first run of the job's workflow."""
    task_index, agent_index, repeat = spec.coordinates(index)
    task, agent = spec.tasks[task_index], spec.agents[agent_index]
    return RolloutSpec(
        options=spec.options,
        id=spec.rollout_id(job_id, index),
        job_id=job_id,
        job_name=spec.name,
        name=spec.rollout_name(job_id, index),
        index=index,
        task=task,
        agent=agent,
        repeat=repeat,
        run=spec.run,
        origin=origin,
        job_run_id=run_id if spec.is_persistent else None,
    )


_STATES = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}


class JobActivities:
    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    @activity.defn(name=names.NAME_ROLLOUTS)
    async def name_rollouts(self, batch: BatchInput) -> Batch:
        """The first of them that fit into one answer, at least one: what agents and worlds bring may be long."""
        spec = await self.context.job(batch.spec)
        indices = [index for first, end in batch.indices for index in range(first, end)]
        named: list[RolloutSpec] = []
        size = 0
        for index in indices:
            rollout = rollout_spec(spec, batch.job_id, batch.origin, index, run_id=batch.run_id)
            size += len(rollout.model_dump_json())
            if named and size > BATCH_BYTES:
                break
            named.append(rollout)
        return Batch(rollouts=named)

    @activity.defn(name=names.ROLLOUT_STATES)
    async def rollout_states(self, asked: OpenRollouts) -> RolloutStates:
        return RolloutStates(states=list(await asyncio.gather(*(self._state(id) for id in asked.ids))))

    async def _state(self, workflow_id: str) -> RolloutState:
        handle = self.context.client.get_workflow_handle(workflow_id, result_type=RolloutOutcome)
        try:
            description = await handle.describe()
            status = _STATES.get(description.status, "unknown") if description.status else "unknown"
            outcome = await handle.result() if status == "completed" else None
        except WorkflowFailureError:
            status, outcome = "failed", None
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise ServerUnavailableError(error.message) from error
            status, outcome = "unknown", None
        return RolloutState.model_validate({"id": workflow_id, "status": status, "outcome": outcome})

    @activity.defn(name=names.HOST_STATUS)
    async def host_status(self, query: HostQuery) -> HostStatus:
        """When the workers of a host's queue last asked for work."""
        response = await self.context.client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.context.client.namespace,
                task_queue=TaskQueue(name=query.queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
        )
        now = Timestamp()
        now.GetCurrentTime()
        polls = [now.ToSeconds() - poller.last_access_time.ToSeconds() for poller in response.pollers]
        return HostStatus(last_poll_sec=float(min(polls)) if polls else None)

    @activity.defn(name=names.FINISH_JOB)
    async def finish_job(self, finish: FinishJob) -> None:
        """The summary, where the results are; the job's secrets and the sandbox of its own are removed."""
        await self._remove_sandbox(await self.context.job(finish.spec), finish)
        if self.context.is_origin(finish.origin):
            spec = await self.context.job(finish.spec)
            paths = JobPaths(Path(finish.origin.job_dir))
            await asyncio.to_thread(write_summary, paths, finish.job_name, spec.total, spec.run.mode)
        secrets.remove(self.context.paths, finish.job_id)

    async def _remove_sandbox(self, spec: JobSpec, finish: FinishJob) -> None:
        """The sandbox that the rollouts have shared, if it is on this host; on another, its reaper does it."""
        name = shared_sandbox(self.context.stack, finish.run_id, spec.tasks[0])
        if not spec.is_persistent or name not in self.context.slots.taken():
            return
        with suppress(SandboxUnavailableError):
            await get_provider(spec.run.sandbox).remove(name)
        release_sandbox(self.context, name)
