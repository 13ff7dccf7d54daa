"""Failures of activities and of the workflows' own code, as data."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from benchflow.contracts.failures import error_type, failure_of
from benchflow.contracts.rollout import Failure, Phase
from benchflow.errors import BenchFlowError


def failure_from(error: BaseException, phase: Phase) -> Failure:
    """Return the failure of a phase: the one that the activity's boundary put into its error, if there is one."""
    cause: BaseException = error
    while isinstance(cause, ActivityError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError) and cause.details:
        with suppress(ValidationError):
            return Failure.model_validate(cause.details[0]).model_copy(update={"phase": phase})
    if isinstance(cause, ActivityTimeout):
        kind = cause.type.name.lower().replace("_", "-") if cause.type is not None else "activity"
        return Failure(type="ActivityTimeout", category="stack", message=f"{kind} timeout", phase=phase, retryable=True)
    if isinstance(cause, ChildWorkflowError) and isinstance(cause.cause, TerminatedError):
        message = "its workflow was terminated"
        return Failure(
            type="RolloutTerminatedError", category="terminated", message=message, phase=phase, retryable=True
        )
    if isinstance(cause, ApplicationError):
        # An error that was raised beside the activity's boundary, as its messages were encoded, has only a type.
        raised: BaseException | None = cause
        while isinstance(raised, ApplicationError):
            if (known := error_type(raised.type)) is not BenchFlowError:
                return failure_of(known(raised.message.removeprefix(f"{raised.type}: ")), phase)
            raised = raised.cause
    return failure_of(cause, phase)
