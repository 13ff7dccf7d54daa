"""Jobs of engine tests, run to their end; conditions that a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import Job, plan_job, submit

T = TypeVar("T")


def job_config(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> JobConfig:
    return JobConfig.model_validate({"paths": list(tasks), "jobs_dir": jobs_dir} | options)


async def run_job(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> Job:
    """Submit, and wait until the job is over. options: fields of `JobConfig`."""
    job = await submit(plan_job(job_config(tasks, jobs_dir, **options)))
    await job.wait()
    return job


def run_tasks(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> dict[str, RolloutResult]:
    """The results of a job by their task's name."""
    job = asyncio.run(run_job(tasks, jobs_dir, **options))
    return {result.task_name: result for result in job.results()}
