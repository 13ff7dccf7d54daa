"""Trying again what fails, with a growing wait, for a limited time.

An activity's schedule-to-close timeout would count an outage as failure. Here the time counts from the first failure
that the workflow sees, and at least one more try follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.failures import MAX_LINE, error_type
    from benchflow.workflows import options
    from benchflow.workflows.failures import failure_from

ATTEMPTS = 5
"""Attempts of an activity, within seconds, that are one try."""

MAX_WAIT_SEC = 60.0

MAX_OUTAGE_WAIT_SEC = 900.0
"""Wait between two tries once an outage has lasted for that time: of weeks of it, the history must hold all."""


class Patience:
    """Failures in a row of one kind of work."""

    def __init__(
        self,
        total_sec: float,
        is_over: Callable[[], bool] = lambda: False,
        outlasts: Callable[[], bool] = lambda: False,
        timeouts_pass: bool = False,
        since: float | None = None,
    ) -> None:
        """Begin without a failure, or with that of an earlier run of the workflow.

        Args:
            total_sec: Seconds from the first failure to the last try.
            is_over: Whether another try is wanted no more.
            outlasts: Whether outages are waited for besides. The time counts from the first failure after the last.
            timeouts_pass: Whether an activity that has not answered in time is an outage, e.g. of a store that hangs.
                Not for work that may take longer than that by itself: it would be tried for ever.
            since: As the attribute of this name was.
        """
        self._total_sec = total_sec
        self._is_over = is_over
        self._outlasts = outlasts
        self._timeouts_pass = timeouts_pass
        self._outage_since: float | None = None
        self._failures = 0
        self.since = since
        """From when on `total_sec` counts, workflow time; None without a failure."""
        self.trouble: str | None = None
        """What failed last and is tried again."""

    def reset(self) -> None:
        """Note that the work has passed."""
        self._outage_since, self._failures, self.since, self.trouble = None, 0, None, None

    async def wait(self, work: str, error: Exception) -> bool:
        """Wait before another try of `work`, which has raised `error`. False: there is none."""
        now = workflow.time()
        self._failures += 1
        failure = failure_from(error, "plan")
        is_outage = error_type(failure.type).is_outage or (self._timeouts_pass and failure.type == "ActivityTimeout")
        if is_outage and self._outlasts():
            self._outage_since, self.since = self._outage_since or now, None
            is_long = now - self._outage_since > self._total_sec
            left = longest = MAX_OUTAGE_WAIT_SEC if is_long else MAX_WAIT_SEC
        else:
            self._outage_since, self.since = None, self.since or now
            left, longest = self.since + self._total_sec - now, MAX_WAIT_SEC
        if left <= 0 or self._is_over():
            self.trouble = None
            return False
        message = f"{failure.file}: {failure.message}" if failure.file else failure.message
        self.trouble = f"{work}, attempt {self._failures + 1}: {failure.type}: {message[:MAX_LINE]}"
        workflow.logger.warning("%s", self.trouble)
        growing = options.current().retry_initial_sec * 2.0 ** min(self._failures - 1, 20)
        try:
            await workflow.wait_condition(self._is_over, timeout=max(0.001, min(growing, left, longest)))
        except TimeoutError:
            return True
        self.trouble = None
        return False

    async def execute(self, name: str, arg: Any, result: Any = None, *, limit_sec: float | None = None) -> Any:
        """Execute an activity that any host may run, with attempts of `limit_sec` seconds as in `options.shared`.

        Raises its error once the time is over, and at once one that no further try can pass.
        """
        limits = options.shared(limit_sec)
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
    """Return whether an activity has failed with an error that a further try would meet again.

    One that may pass is not, also where the worker has ended its attempts.
    """
    cause = error.cause if isinstance(error, ActivityError) else None
    is_ended = isinstance(cause, ApplicationError) and cause.non_retryable
    return is_ended and not failure_from(error, "plan").retryable
