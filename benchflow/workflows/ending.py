"""How a rollout ends, whatever became of it: its result is written, its sandbox goes, its job is told."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReportInput, ReportResult, SandboxInput
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Failure, RolloutOutcome
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.workflows import options
    from benchflow.workflows.cancellation import result_of, to_the_end
    from benchflow.workflows.failures import failure_from


async def write_report(report: ReportInput) -> tuple[ReportResult, Failure | None]:
    """Where the results lie; with why they could not be written, if so: the outcome reaches the job all the same."""
    total = options.current().report_total_sec
    try:
        if report.sandbox is not None:
            collecting = workflow.start_activity(
                names.REPORT,
                report,
                result_type=ReportResult,
                **options.on_host(report.sandbox.queue, total, total_sec=total),
            )
            # A cancellation ends the collecting; what there is by then is written.
            return await result_of(collecting), None
    except ActivityError as error:
        workflow.logger.warning("report on the sandbox's host failed: %s", error.cause)
        report = report.model_copy(update={"sandbox": None})
    try:
        writing = workflow.execute_activity(
            names.REPORT_WITHOUT_SANDBOX,
            report,
            result_type=ReportResult,
            **options.shared(total, total_sec=total),
        )
        return await to_the_end(writing), None
    except ActivityError as error:
        workflow.logger.error("the result could not be written: %s", error.cause)
        return ReportResult(), failure_from(error, "report")


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
