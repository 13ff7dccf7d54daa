"""Retries of failing work by a workflow, with exponential backoff, for a limited time.

An activity's schedule-to-close timeout would also run during an outage of the server or all workers. Here the time
counts from the first failure that the workflow sees, and at least one retry follows that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.failures import MAX_LINE, error_type
    from benchflow.contracts.fixed_durations import MAX_OUTAGE_WAIT_SEC, MAX_TRY_WAIT_SEC
    from benchflow.errors import ActivityTimeoutError
    from benchflow.workflows import activity_options
    from benchflow.workflows.workflow_failures import make_failure

ATTEMPTS = 5
"""Attempts that the server makes of an activity, within seconds, in one try of the workflow."""


class WorkRetries:
    """Retry policy of one kind of work: its consecutive failures, the wait after each, and when to give up."""

    def __init__(
        self,
        total_sec: float,
        is_over: Callable[[], bool] = lambda: False,
        outlasts: Callable[[], bool] = lambda: False,
        timeouts_pass: bool = False,
        since: float | None = None,
    ) -> None:
        """Make the policy, without a failure or with that of an earlier run of the workflow.

        Args:
            total_sec: Seconds from the first failure to the last try.
            is_over: Returns whether to give up now; it also ends a wait.
            outlasts: Returns whether to retry through outages of any length. `total_sec` then counts from the first
                other failure after the last outage.
            timeouts_pass: Whether the timeout of an activity counts as an outage, e.g. of a store that hangs. Not for
                work that may by itself take longer than its timeout: it would be retried for ever.
            since: Value of the attribute `since` in an earlier run; None for no failure.
        """
        self._total_sec = total_sec
        self._is_over = is_over
        self._outlasts = outlasts
        self._timeouts_pass = timeouts_pass
        self._outage_since: float | None = None
        self._failures = 0
        self.since = since
        """Workflow time from which `total_sec` counts; None without a failure, and during an outage."""
        self.trouble: str | None = None
        """The last failure, as a line, while the work is being retried; None otherwise."""

    def reset(self) -> None:
        """Record that the work has succeeded: forget all failures."""
        self._outage_since, self._failures, self.since, self.trouble = None, 0, None, None

    async def wait(self, work: str, error: Exception) -> bool:
        """Count a failure, and wait before the next try.

        Args:
            work: Name of the work, for `trouble`.
            error: The exception that the work raised.

        Returns:
            Whether to try again; False if the time is over, or `is_over`.
        """
        now = workflow.time()
        self._failures += 1
        failure = make_failure(error, "plan")
        is_outage = error_type(failure.type).is_outage or (
            self._timeouts_pass and failure.type == ActivityTimeoutError.__name__
        )
        if is_outage and self._outlasts():
            self._outage_since, self.since = self._outage_since or now, None
            is_long = now - self._outage_since > self._total_sec
            left = longest = MAX_OUTAGE_WAIT_SEC if is_long else MAX_TRY_WAIT_SEC
        else:
            self._outage_since, self.since = None, self.since or now
            left, longest = self.since + self._total_sec - now, MAX_TRY_WAIT_SEC
        if left <= 0 or self._is_over():
            self.trouble = None
            return False
        message = f"{failure.file}: {failure.message}" if failure.file else failure.message
        self.trouble = f"{work}, attempt {self._failures + 1}: {failure.type}: {message[:MAX_LINE]}"
        workflow.logger.warning("%s", self.trouble)
        growing = activity_options.get_options().retry_initial_sec * 2.0 ** min(self._failures - 1, 20)
        try:
            await workflow.wait_condition(self._is_over, timeout=max(0.001, min(growing, left, longest)))
        except TimeoutError:
            return True
        self.trouble = None
        return False

    async def execute(self, name: str, arg: Any, result: Any = None, *, limit_sec: float | None = None) -> Any:
        """Execute an activity on any host, with retries, and return its result.

        Args:
            name: Name of the activity.
            arg: Input of the activity.
            result: Type of its result.
            limit_sec: Seconds of one attempt; `short_limit_sec` by default.

        Raises:
            ActivityError: The last failure, when the time is over; or at once, one that no retry can change.
        """
        limits = activity_options.make_shared_options(limit_sec)
        limits["retry_policy"] = replace(limits["retry_policy"], maximum_attempts=ATTEMPTS)
        while True:
            try:
                found = await workflow.execute_activity(name, arg, result_type=result, **limits)
            except Exception as error:
                if _is_final(error):
                    self.trouble = None
                    raise
                if not await self.wait(name, error):
                    raise
            else:
                self.reset()
                return found


def _is_final(error: Exception) -> bool:
    """Return whether an activity has failed with an error that no retry can change.

    A transient error that the worker made non-retryable, after `max_failures` attempts, is not final.
    """
    cause = error.cause if isinstance(error, ActivityError) else None
    is_ended = isinstance(cause, ApplicationError) and cause.non_retryable
    return is_ended and not make_failure(error, "plan").retryable
