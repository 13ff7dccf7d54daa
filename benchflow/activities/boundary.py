"""The interceptor around every activity: a record on disk, a heartbeat, typed failures, a size limit.

The record lets another worker process hand over the activity if this one dies: see `handover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.handover import RunningActivities
from benchflow.contracts.base import MAX_MESSAGE_BYTES, Model
from benchflow.contracts.failures import failure_of, typed_error
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import BenchFlowError, ServerUnavailableError, StackError

log = structlog.get_logger("benchflow.activities")


_TRANSIENT = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.UNKNOWN,
    }
)
"""Status codes of a server that is unreachable, restarts, or is overloaded. They pass: the activity is retried."""

MAX_RETRIED_TEXT = 800
"""Bytes of the message of a retried failure. The server stores it twice: as the message, and in the details."""


class BoundaryInterceptor(Interceptor):
    """Interceptor that puts `_Boundary` around every activity of a worker.

    Args:
        records: Records on disk of the activities that run in this process.
        work: Tasks of the activities, which outlive single attempts.
        options: Heartbeat interval and `max_failures`.
    """

    def __init__(self, records: RunningActivities, work: OngoingWork, options: WorkerOptions) -> None:
        """Make it."""
        self.records = records
        self.work = work
        self.options = options

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Return `next` with the boundary around it."""
        return _Boundary(next, self.records, self.work, self.options)


class _Boundary(ActivityInboundInterceptor):
    """Interceptor of one activity. Arguments as in `BoundaryInterceptor`; `next` is the interceptor inside of it."""

    def __init__(
        self, next: ActivityInboundInterceptor, records: RunningActivities, work: OngoingWork, options: WorkerOptions
    ) -> None:
        super().__init__(next)
        self.records = records
        self.work = work
        self.options = options

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Execute the activity, and return its result. Any error becomes an `ApplicationError` with a `Failure`."""
        failures = count_failures()
        with self.records.record(activity.info().task_token):
            try:
                async with _heartbeat(self._heartbeat_every(), failures):
                    result = await self.work.attempt(lambda: self.next.execute_activity(input))
                _check_size(result)
                return result
            except ApplicationError:
                raise
            except Exception as error:
                sent = self._make_application_error(error, failures)
                # The causes of a retried failure are in the log only: with their tracebacks, it exceeds the size
                # that the server stores (see `_shorten`).
                raise sent from (error if sent.non_retryable else None)

    def _heartbeat_every(self) -> float:
        """Return the seconds between heartbeats: the worker's option, at most a third of the heartbeat timeout."""
        timeout = activity.info().heartbeat_timeout
        every_sec = self.options.heartbeat_every_sec
        return min(every_sec, timeout.total_seconds() / 3) if timeout else every_sec

    def _make_application_error(self, error: Exception, failures: int) -> ApplicationError:
        """Return the error for the server, which retries the activity unless the error is non-retryable.

        Args:
            error: The exception that the activity raised.
            failures: Number of earlier attempts that count towards `max_failures`. Outages do not count.
        """
        if isinstance(error, RPCError) and error.status in _TRANSIENT:
            error = ServerUnavailableError(f"the Temporal server did not do what it was asked: {error.message}")
        failure, known = failure_of(error), typed_error(error)
        is_final = not failure.retryable
        if not is_final and not (isinstance(known, BenchFlowError) and known.is_outage):
            failures += 1
            is_final = failures >= self.options.max_failures
            # Sent before the failure: the server gives the last heartbeat details to the next attempt, on any worker.
            activity.heartbeat(failures)
        name, attempt = activity.info().activity_type, activity.info().attempt
        if not isinstance(known, BenchFlowError):
            # Only once: the traceback is long, and mostly the same for every attempt.
            log.error("unexpected failure", activity=name, attempt=attempt, exc_info=error if failures == 1 else None)
        elif not is_final:
            log.info("an activity will be tried again", activity=name, attempt=attempt, error=known.message)
        if not is_final:
            failure = _shorten(failure)
        return ApplicationError(failure.message, failure, type=failure.type, non_retryable=is_final)


def _shorten(failure: Failure) -> Failure:
    """Return the failure without its log tail, its message and remedy cut so that the server stores it during retries.

    The server replaces a larger failure by a note that it was too large (`limit.mutableStateActivityFailureSize.error`,
    4 KiB with the traceback).
    """

    def cut(text: str) -> str:
        return text.encode()[:MAX_RETRIED_TEXT].decode(errors="ignore")

    remedy = cut(failure.remedy)[:200] if failure.remedy else None
    return failure.model_copy(update={"message": cut(failure.message), "remedy": remedy, "log_tail": None})


def count_failures() -> int:
    """Return how many earlier attempts of the running activity have failed; outages and lost workers do not count."""
    details = activity.info().heartbeat_details
    return int(details[0]) if details else 0


def _check_size(result: Any) -> None:
    """Raise `StackError` if a result is larger than a workflow may carry."""
    if isinstance(result, Model):
        size = len(result.model_dump_json())
        if size > MAX_MESSAGE_BYTES:
            raise StackError(
                f"{type(result).__name__} of {size} bytes is more than a workflow carries ({MAX_MESSAGE_BYTES})"
            )


@asynccontextmanager
async def _heartbeat(every_sec: float, failures: int) -> AsyncIterator[None]:
    """Heartbeat during the block, with the number of failed attempts so far as details."""

    async def beat() -> None:
        # The server keeps the details of the last heartbeat only: one without details would erase the count.
        details = [failures] if failures else []
        is_logged = False
        while True:
            await asyncio.sleep(every_sec)
            try:
                activity.heartbeat(*details)
            except Exception:
                # The loop must not end: without heartbeats the attempt times out. The next heartbeat may get through.
                if not is_logged:
                    log.exception("a heartbeat failed", activity=activity.info().activity_type)
                is_logged = True

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
