"""How a rollout ends, whatever became of it: its result is written, its sandbox goes, its job is told."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, RetryState
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReportInput, ReportResult, SandboxInput
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Failure, RolloutOutcome
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.workflows import options
    from benchflow.workflows.failures import failure_from


class ReportWriter:
    """Writes a rollout's result: on its sandbox's host, and elsewhere where that host can't."""

    def __init__(self) -> None:
        self._collecting: workflow.ActivityHandle[Any] | None = None

    def stop_collecting(self) -> None:
        """End the collecting of what is in the sandbox. What there is by then is written."""
        if self._collecting is not None:
            # Not at once: a result that has arrived needs one more turn of the loop to reach the handle.
            asyncio.get_running_loop().call_soon(self._collecting.cancel)

    async def write(self, report: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write the result. Return its place, and the failure if it could not be written."""
        total = options.current().report_total_sec
        try:
            if report.sandbox is not None:
                limits = options.on_host(report.sandbox.queue, total, total_sec=total)
                return await self._execute(names.REPORT, report, limits), None
        except Exception as error:
            workflow.logger.warning("report on the sandbox's host failed: %s", error.__cause__ or error)
            report = report.model_copy(update={"sandbox": None})
        try:
            limits = options.shared(total, total_sec=total)
            return await self._execute(names.REPORT_WITHOUT_SANDBOX, report, limits), None
        except ActivityError as error:
            workflow.logger.error("the result could not be written: %s", error.cause)
            return ReportResult(), failure_from(error, "report")

    async def _execute(self, name: str, report: ReportInput, limits: dict[str, Any]) -> ReportResult:
        """Execute an activity that writes the result, once more where it ran out of time: in an outage, perhaps."""
        has_run_out = False
        while True:
            writing = workflow.start_activity(name, report, result_type=ReportResult, **limits)
            if name == names.REPORT:
                self._collecting = writing
            try:
                written: ReportResult = await writing
                return written
            except ActivityError as error:
                # The server ends an activity with its last error, too, where the next attempt would come too late.
                is_out_of_time = isinstance(error.cause, ActivityTimeout) or error.retry_state == RetryState.TIMEOUT
                if has_run_out or not is_out_of_time:
                    raise
                has_run_out = True


async def tear_down(spec: RolloutSpec, sandbox: SandboxRef | None) -> None:
    """Remove the sandbox, if there is one."""
    if sandbox is None:
        return
    try:
        await workflow.execute_activity(
            names.TEARDOWN,
            SandboxInput(spec=spec, sandbox=sandbox),
            **options.on_host(sandbox.queue, total_sec=options.current().teardown_total_sec),
        )
    except ActivityError as error:
        # A worker of that host reaps it by its labels once this workflow is over.
        workflow.logger.warning("teardown failed: %s", error.cause)


async def tell_job(spec: RolloutSpec, outcome: RolloutOutcome) -> None:
    """Signal the job that this rollout is done."""
    job = workflow.get_external_workflow_handle(spec.job_id)
    try:
        await job.signal(names.ROLLOUT_DONE, outcome)
    except FailureError as error:
        workflow.logger.warning("the job %s could not be told: %s", spec.job_id, error)
