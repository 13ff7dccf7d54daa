"""Conversion of exceptions in workflows, of activities, children or the engine's code, to `Failure` data."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from benchflow.contracts.failures import error_type, failure_of
from benchflow.contracts.rollout_records import Failure, Phase
from benchflow.errors import ActivityTimeoutError, BenchFlowError, RolloutTerminatedError


def make_failure(error: BaseException, phase: Phase) -> Failure:
    """Return the `Failure` that describes an exception.

    Args:
        error: Exception from an activity, a child workflow or the workflow's own code. If the worker attached a
            `Failure` to an activity's error, as it does for all errors that activities raise, that one is returned.
        phase: Phase of the rollout that the failure is attributed to.
    """
    cause: BaseException = error
    while isinstance(cause, ActivityError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError) and cause.details:
        with suppress(ValidationError):
            return Failure.model_validate(cause.details[0]).model_copy(update={"phase": phase})
    if isinstance(cause, ActivityTimeout):
        kind = cause.type.name.lower().replace("_", "-") if cause.type is not None else "activity"
        return failure_of(ActivityTimeoutError(f"{kind} timeout"), phase)
    if isinstance(cause, ChildWorkflowError) and isinstance(cause.cause, TerminatedError):
        return failure_of(RolloutTerminatedError("its workflow was terminated"), phase)
    if isinstance(cause, ApplicationError):
        # An error that was raised outside the activity's interceptor, when its messages were encoded, has no `Failure`,
        # but a type, from which one is made.
        raised: BaseException | None = cause
        while isinstance(raised, ApplicationError):
            if (known := error_type(raised.type)) is not BenchFlowError:
                return failure_of(known(raised.message.removeprefix(f"{raised.type}: ")), phase)
            raised = raised.cause
    return failure_of(cause, phase)
