"""How a rollout ends, whatever became of it: its result is written, and its job is told."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReportInput, ReportResult
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Failure, RolloutOutcome
    from benchflow.workflows import options
    from benchflow.workflows.cancellation import result_of
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import on_host


class ReportWriter:
    """Writes a rollout's result: on its sandbox's host, and elsewhere where that host can't.

    An outage is waited for, however long it lasts: what was measured would be lost. Of a cancelled rollout nothing was
    measured; `report_total_sec` limits each of the two ways.
    """

    def __init__(self) -> None:
        self._writing: asyncio.Task[ReportResult] | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the collecting of what is in the sandbox, and the waiting. What there is by then is written."""
        self.is_cancelled = True
        if self._writing is not None:
            self._writing.cancel()

    async def write(self, report: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write the result. Return its place, and the failure if it could not be written."""
        if report.status == "cancelled":
            self.is_cancelled = True
        while True:
            was_cancelled = self.is_cancelled
            try:
                return await self._execute(report), None
            except (asyncio.CancelledError, Exception) as error:
                if report.sandbox is not None:
                    workflow.logger.warning("report on the sandbox's host failed: %s", error.__cause__ or error)
                    cancelled = is_cancelled_exception(error)
                    why = "the rollout was cancelled" if cancelled else failure_from(error, "report").message
                    told = [*report.warnings, f"what lies in the sandbox was not collected, or not all of it: {why}"]
                    report = report.model_copy(update={"sandbox": None, "warnings": told})
                elif was_cancelled or not self.is_cancelled:
                    if not isinstance(error, asyncio.CancelledError | ActivityError):
                        raise
                    workflow.logger.error("the result could not be written: %s", error.__cause__ or error)
                    return ReportResult(), failure_from(error, "report")

    async def _execute(self, report: ReportInput) -> ReportResult:
        """Execute the activity that writes a result, where its sandbox is or on any host."""
        limit = options.current().report_total_sec
        total = limit if self.is_cancelled else None
        if report.sandbox is not None:
            writing = on_host(report.sandbox.queue, names.REPORT, report, ReportResult, limit, total=total)
        else:
            limits = options.shared(limit, total_sec=total)
            writing = result_of(
                workflow.start_activity(names.REPORT_WITHOUT_SANDBOX, report, result_type=ReportResult, **limits)
            )
        self._writing = asyncio.ensure_future(writing)
        return await self._writing


async def tell_job(spec: RolloutSpec, outcome: RolloutOutcome) -> None:
    """Signal the job that this rollout is done."""
    job = workflow.get_external_workflow_handle(spec.job_id)
    try:
        await job.signal(names.ROLLOUT_DONE, outcome)
    except FailureError as error:
        workflow.logger.warning("the job %s could not be told: %s", spec.job_id, error)
