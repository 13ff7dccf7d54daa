"""The activity that writes the result rows of rollouts that can't report: never started, terminated, or stuck."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import structlog
from temporalio import activity

from benchflow.activities.boundary import count_failures
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts import temporal_names
from benchflow.contracts.activities import LostInput, LostOutcomes, ReportInput
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.failures import typed_error
from benchflow.contracts.job import JobSpec, Origin, RolloutSpec
from benchflow.contracts.lost_rollouts import LostRollout
from benchflow.contracts.rollout_records import RolloutOutcome, RolloutResult
from benchflow.errors import BenchFlowError
from benchflow.host_files import raise_storage_errors
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.reporting import HostedReport, list_collected
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.planes.sandbox import directory_trees
from benchflow.results.lost_rows import (
    find_lost_paths,
    find_result,
    is_same_attempt,
    make_lost_spec,
    make_outcome,
    prepare_row,
    require_result,
    write_lost_row,
)
from benchflow.results.summary import read_spec
from benchflow.stored_files import read_stored
from benchflow.tasks import unpack
from benchflow.workflow_executions import end_stuck, find_pack

log = structlog.get_logger("benchflow.lost")


async def read_job_spec(context: WorkerContext, ref: ArtifactRef, origin: Origin) -> JobSpec | None:
    """Return a job's specification: from the store, else from the job's directory; None if neither can be read.

    Args:
        context: Host and client of this worker process.
        ref: The specification in the store.
        origin: Host and directory of the submit; the directory is read on that host only.

    Raises:
        StoreError: The store can't be read now, and may be later.
    """
    try:
        return await context.load_job(ref)
    except (BenchFlowError, ValueError) as error:
        if isinstance(error, BenchFlowError) and error.retryable and not context.is_origin(origin):
            raise
        log.warning("the job's specification can't be read from the store", error=str(error))
    try:
        return await asyncio.to_thread(read_spec, JobPaths(Path(origin.job_dir))) if context.is_origin(origin) else None
    except (OSError, ValueError, BenchFlowError) as error:
        log.warning("nor from the job's directory", error=str(error))
        return None


class LostActivities:
    """The activity for rollouts that can't report.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self.context = context

    @activity.defn(name=temporal_names.REPORT_LOST)
    async def report_lost(self, given: LostInput) -> LostOutcomes:
        """Write the rows of lost rollouts, and return their outcomes. Stuck ones are terminated first.

        Idempotent: a result that exists, from the rollout itself or an earlier attempt, is never replaced, and its
        outcome is returned. On a host other than the submitting one, nothing is written.

        Args:
            given: The job, the lost rollouts, and why they were lost.
        """
        spec = await read_job_spec(self.context, given.spec, given.origin)
        return LostOutcomes(outcomes=[await self._report_rollout(given, spec, lost) for lost in given.rollouts])

    async def _report_rollout(self, given: LostInput, job: JobSpec | None, lost: LostRollout) -> RolloutOutcome:
        """Return the outcome of one lost rollout: from its result or report if it has any, else from a new row."""
        spec = make_lost_spec(job, given.job_id, given.origin, lost, run_id=given.run_id) if job is not None else None
        if given.is_stuck and spec is not None:
            await end_stuck(self.context.client, spec.id, lost.run_id or None)
        rollout, paths = find_lost_paths(given.origin, given.job_id, lost.index, spec)
        is_origin = self.context.is_origin(given.origin)
        with raise_storage_errors(paths.root):
            if is_origin:
                is_restart = spec is not None and spec.restart is not None
                found = await asyncio.to_thread(find_result, paths, rollout, lost, is_restart=is_restart)
                if found is not None:
                    return make_outcome(found, lost.index).model_copy(update={"directory": str(paths.root)})
            if lost.run_id and (delivered := await self._fetch_delivered(rollout, lost)) is not None:
                return delivered
            if not is_origin:
                # The row is written where the job was submitted: `Job.fetch` or, on that host, `finish_job`.
                return RolloutOutcome(
                    id=rollout,
                    index=lost.index,
                    attempt=max(1, lost.attempt),
                    status="errored",
                    error=given.failure,
                )
            if spec is None or not await self._write_all(spec, paths, given, lost):
                await asyncio.to_thread(
                    write_lost_row, given.origin, given.job_id, given.job_name, lost, given.failure, spec
                )
        written = await asyncio.to_thread(require_result, paths, rollout, lost)
        return make_outcome(written, lost.index).model_copy(update={"directory": str(paths.root)})

    async def _fetch_delivered(self, rollout: str, lost: LostRollout) -> RolloutOutcome | None:
        """Return the outcome of a rollout whose results are in the store; None if it has put none there."""
        pack = await find_pack(self.context.client, rollout)
        if pack is None:
            return None
        with tempfile.TemporaryDirectory() as scratch:
            file, root = Path(scratch) / "rollout.tar", Path(scratch) / "rollout"
            await self.context.store.fetch(pack, file)
            await asyncio.to_thread(unpack, file, root)
            content = await asyncio.to_thread(read_stored, RolloutPaths(root).result)
        result = RolloutResult.model_validate_json(content)
        return (
            make_outcome(result, lost.index).model_copy(update={"pack": pack})
            if is_same_attempt(result, rollout, lost)
            else None
        )

    async def _write_all(self, spec: RolloutSpec, paths: RolloutPaths, given: LostInput, lost: LostRollout) -> bool:
        """Write the row and the trajectory of a rollout that was started. Return whether that was possible.

        Raises:
            BenchFlowError: A transient error: the activity is to be retried.
        """
        if not lost.run_id:
            return False
        await asyncio.to_thread(prepare_row, paths, spec, lost)
        report = ReportInput(
            spec=spec,
            run_id=lost.run_id,
            sandbox=None,
            status="errored",
            error=given.failure,
            started_at=datetime.now(UTC).timestamp(),
        )
        try:
            rollout = Hosted(self.context, spec)
            await rollout.read_task()
            writing = HostedReport(rollout, report, lambda: count_failures() + 1 >= self.context.options.max_failures)
            await writing.write(is_lost=True)
            return True
        except Exception as error:
            known = typed_error(error)
            if isinstance(known, BenchFlowError) and known.retryable:
                raise
            log.warning("a lost rollout has a row only", rollout=spec.id, error=str(error))
            # The collected files may hold secrets, since their redaction has not completed.
            for directory in list_collected(paths):
                await asyncio.to_thread(directory_trees.remove_tree, directory)
            return False
