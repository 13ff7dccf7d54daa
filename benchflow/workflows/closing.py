"""The end of a job: write its summary, and wait for the workflows of its last rollouts to close."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import FinishJob
    from benchflow.contracts.job import JobInput
    from benchflow.contracts.lost_rollouts import LostGroup
    from benchflow.workflows.work_retries import WorkRetries


async def finish_job(
    job: JobInput, lost: list[LostGroup], retries: WorkRetries, children: Collection[asyncio.Task[Any]]
) -> None:
    """Write the summary of a job and the missing rows, and wait a moment for the last rollouts to close.

    Args:
        job: The job.
        lost: Rollouts of the job that still need a row.
        retries: Retry policy of the write.
        children: Handles of the rollout workflows that this run has started and not seen close.

    Raises:
        ActivityError: The summary could not be written, in spite of the retries.
    """
    finish = FinishJob(
        job_id=job.id,
        job_name=job.name,
        spec=job.spec,
        origin=job.origin,
        run_id=workflow.info().first_execution_run_id,
        total=job.total,
        lost=lost,
    )
    await retries.execute(temporal_names.FINISH_JOB, finish, limit_sec=job.options.report_total_sec)
    if children:
        # The last rollouts have reported and are about to close. If the event of a close arrives while the job
        # completes, the job's last workflow task fails and runs again.
        await workflow.wait(list(children), timeout=job.options.closing_sec)
