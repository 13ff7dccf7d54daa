"""The activities of a job: make its rollouts' specifications, poll their states, finish the job."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import structlog
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from benchflow import secrets
from benchflow.activities.lost_activities import read_job_spec
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts import temporal_names
from benchflow.contracts.activities import (
    Batch,
    BatchInput,
    FinishJob,
    HostQuery,
    HostStatus,
    OpenRollouts,
    ReportedState,
    ReportedStates,
)
from benchflow.contracts.job import JobSpec, RolloutSpec
from benchflow.contracts.rollout_records import RolloutOutcome
from benchflow.errors import SandboxUnavailableError, StoreError
from benchflow.hosting.provisioning import make_shared_name
from benchflow.paths import JobPaths
from benchflow.planes.sandbox import get_provider
from benchflow.results.lost_rows import make_lost_spec, write_lost_row
from benchflow.results.summary import write_summary
from benchflow.workflow_executions import end_stuck, find_failing_tasks, find_last_poll, read_outcome, require_not_found

log = structlog.get_logger("benchflow.activities")

BATCH_BYTES = 48 * 1024
"""Maximum size of the rollout specifications in one response; as base64, a payload takes a third more."""


_STATES = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


class JobActivities:
    """The activities of a job's workflow.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self.context = context

    @activity.defn(name=temporal_names.NAME_ROLLOUTS)
    async def name_rollouts(self, batch: BatchInput) -> Batch:
        """Return the specifications of the first of a batch's rollouts: as many as fit in `BATCH_BYTES`, at least one.

        The caller requests the rest again: specifications of agents and worlds may be long. Without side effects.

        Args:
            batch: The job, and the indices of the rollouts.
        """
        spec = await self.context.load_job(batch.spec)
        indices = [index for first, end in batch.indices for index in range(first, end)]
        named: list[RolloutSpec] = []
        size = 0
        for index in indices:
            rollout = spec.rollout(batch.job_id, batch.origin, index, run_id=batch.run_id)
            size += len(rollout.model_dump_json())
            if named and size > BATCH_BYTES:
                break
            named.append(rollout)
        return Batch(rollouts=named)

    @activity.defn(name=temporal_names.ROLLOUT_STATES)
    async def rollout_states(self, asked: OpenRollouts) -> ReportedStates:
        """Return the states of rollouts that have not reported.

        Also terminates stuck workflows: of attempts that have reported (`awaited`), and of children of the rollouts. A
        workflow that has ended is success, so that a retry is harmless.

        Args:
            asked: The rollouts, and when a workflow counts as stuck.
        """
        for awaited in await asyncio.gather(*(self._find_state(id, asked) for id in asked.awaited)):
            if awaited.status == "stuck":
                log.error("ending an attempt that is stuck", id=awaited.id, reason=awaited.reason)
                await end_stuck(self.context.client, awaited.id, awaited.run_id)
        return ReportedStates(states=list(await asyncio.gather(*(self._find_state(id, asked) for id in asked.ids))))

    async def _find_state(self, workflow_id: str, asked: OpenRollouts) -> ReportedState:
        """Return the state of a rollout; `running`, so that it is polled again, if its outcome can't be read now."""
        try:
            return await self._ask_state(workflow_id, asked)
        except StoreError as error:
            log.warning("the state of a rollout can't be told", id=workflow_id, error=error.message)
            return ReportedState(id=workflow_id, status="running")

    async def _ask_state(self, workflow_id: str, asked: OpenRollouts) -> ReportedState:
        """Return the state of a rollout as the server has it, and terminate children of it that are stuck.

        Raises:
            StoreError: The outcome is in the store, and can't be read now.
            ServerUnavailableError: The server does not answer.
        """
        handle = self.context.client.get_workflow_handle(workflow_id, result_type=RolloutOutcome)
        status, outcome, reason, run_id = "unknown", None, None, ""
        try:
            description = await handle.describe()
            run_id = description.raw_description.workflow_execution_info.first_run_id
            status = _STATES.get(description.status, "running") if description.status else "running"
            if status == "completed":
                outcome, reason = await read_outcome(handle)
            if status == "running":
                for failing in await find_failing_tasks(self.context.client, description):
                    if not failing.is_stuck(asked.stuck_attempts, asked.stuck_after_sec):
                        continue
                    why = f"a workflow task failed {failing.attempts - 1} times: {failing.reason}"
                    if failing.workflow_id == workflow_id:
                        status, reason = "stuck", why
                    else:
                        # A child of the rollout: its parent, which awaits it, continues as after any child's failure.
                        log.error("ending a child that is stuck", id=failing.workflow_id, reason=why)
                        await end_stuck(self.context.client, failing.workflow_id)
        except WorkflowFailureError:
            status = "failed"
        except RPCError as error:
            require_not_found(error)
        return ReportedState.model_validate(
            {"id": workflow_id, "status": status, "outcome": outcome, "run_id": run_id, "reason": reason}
        )

    @activity.defn(name=temporal_names.HOST_STATUS)
    async def host_status(self, query: HostQuery) -> HostStatus:
        """Return when a worker of a host last polled; both fields are None if the server knows of no poll.

        Args:
            query: Task queue of the host.
        """
        last = await find_last_poll(self.context.client, query.queue)
        return HostStatus(last_poll_sec=time.time() - last if last is not None else None, last_poll=last)

    @activity.defn(name=temporal_names.FINISH_JOB)
    async def finish_job(self, finish: FinishJob) -> None:
        """Remove the job's secrets and shared sandbox; on the submitting host, write missing rows and the summary.

        Idempotent: a retry keeps existing results, and writes the summary again.

        Args:
            finish: The job, and its rollouts that still need a row.
        """
        # The secrets first: nothing of the job needs them any more, and the rest may fail.
        secrets.remove_secrets(self.context.paths, finish.job_id)
        spec = await read_job_spec(self.context, finish.spec, finish.origin)
        if spec is not None:
            await self._remove_sandbox(spec, finish)
        if not self.context.is_origin(finish.origin):
            return
        for group in finish.lost:
            for lost in group.each():
                rollout = (
                    make_lost_spec(spec, finish.job_id, finish.origin, lost, run_id=finish.run_id) if spec else None
                )
                await asyncio.to_thread(
                    write_lost_row, finish.origin, finish.job_id, finish.job_name, lost, group.failure, rollout
                )
        paths = JobPaths(Path(finish.origin.job_dir))
        total = finish.total or (spec.total if spec is not None else 0)
        await asyncio.to_thread(write_summary, paths, finish.job_name, total, spec)

    async def _remove_sandbox(self, spec: JobSpec, finish: FinishJob) -> None:
        """Remove the sandbox that the rollouts share, if it is on this host; else the reaper of its host removes it."""
        name = make_shared_name(self.context.stack, finish.run_id, spec.tasks[0])
        if not spec.is_persistent or name not in self.context.slots.taken():
            return
        with suppress(SandboxUnavailableError):
            await get_provider(spec.run.sandbox).remove(name)
        self.context.release(name)
