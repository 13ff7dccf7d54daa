"""PreflightWorkflow: asks each model of a job for one token before the job starts, from a worker, as rollouts would."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.preflight import Preflight, PreflightInput
    from benchflow.workflows import options


LIMIT_SEC = 210.0
"""Seconds of an attempt: a model is asked three times at most, and has a minute for each answer."""


@workflow.defn(name=names.PREFLIGHT_WORKFLOW)
class PreflightWorkflow:
    """Does nothing but run one activity: the keys are known to workers alone, and the answer must come at once."""

    @workflow.init
    def __init__(self, wanted: PreflightInput) -> None:
        """Take the options, which `options.current` reads."""
        self.options = wanted.options

    @workflow.run
    async def run(self, wanted: PreflightInput) -> Preflight:
        """Return the models that served no call."""
        checked: Preflight = await workflow.execute_activity(
            names.PREFLIGHT, wanted, result_type=Preflight, **options.shared(LIMIT_SEC)
        )
        return checked
