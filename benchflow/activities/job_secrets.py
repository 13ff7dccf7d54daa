"""Removal of the secrets of jobs that ended without removing them: terminated, or forgotten by the server."""

from __future__ import annotations

import asyncio
import time

import structlog
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from benchflow import secrets
from benchflow.activities.worker_context import WorkerContext
from benchflow.errors import ServerUnavailableError
from benchflow.workflow_executions import require_not_found

log = structlog.get_logger("benchflow.secrets")


async def remove_secrets_of_ended_jobs(context: WorkerContext) -> None:
    """Remove the secrets of ended jobs from this host. On an error, log it and leave the job's to the next round.

    Args:
        context: Host and client of this worker process.
    """
    for job, left_at in await asyncio.to_thread(lambda: list(secrets.list_stored_secrets(context.paths))):
        try:
            if await _is_over(context, job, left_at):
                await asyncio.to_thread(secrets.remove_secrets, context.paths, job)
                log.info("removed the secrets of a job that is over", job=job)
        except (ServerUnavailableError, RPCError, OSError) as error:
            log.warning("secrets stay for now", job=job, error=str(error))


async def _is_over(context: WorkerContext, job: str, left_at: float) -> bool:
    """Return whether a job, with all of its rollouts, has ended since its secrets were written.

    A submit writes the secrets before it starts the job. A job that ended before that is an earlier one of the same id,
    and does not count, unless the secrets are old. The rollouts of a terminated job still run, and need them.

    Args:
        context: Host and client of this worker process.
        job: Workflow id of the job.
        left_at: Timestamp at which the job's secrets were written.
    """
    is_old = time.time() - left_at > context.options.unknown_grace_sec
    try:
        description = await context.client.get_workflow_handle(job).describe()
    except RPCError as error:
        require_not_found(error)
        return is_old
    if description.status == WorkflowExecutionStatus.RUNNING:
        return False
    ended = description.close_time
    if not is_old and (ended is None or ended.timestamp() <= left_at):
        return False
    running = f'WorkflowId STARTS_WITH "{job}/r/" AND ExecutionStatus = "Running"'
    return (await context.client.count_workflows(running)).count == 0
