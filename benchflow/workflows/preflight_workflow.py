"""PreflightWorkflow: checks each model of a job with a one-token request before the job starts, from a worker."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.fixed_durations import PREFLIGHT_SEC
    from benchflow.contracts.preflight import Preflight, PreflightInput
    from benchflow.workflows import activity_options


@workflow.defn(name=temporal_names.PREFLIGHT_WORKFLOW)
class PreflightWorkflow:
    """Workflow of one activity, which checks a job's models: on a worker, because only workers have the keys."""

    @workflow.init
    def __init__(self, wanted: PreflightInput) -> None:
        """Set the attribute `options`, which `options.current` reads.

        Args:
            wanted: The job's agents and options.
        """
        self.options = wanted.options

    @workflow.run
    async def run(self, wanted: PreflightInput) -> Preflight:
        """Request one token from each model, and return the problems of those that did not respond properly."""
        checked: Preflight = await workflow.execute_activity(
            temporal_names.PREFLIGHT,
            wanted,
            result_type=Preflight,
            **activity_options.make_shared_options(PREFLIGHT_SEC),
        )
        return checked
