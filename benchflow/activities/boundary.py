"""What every activity has around it: a record on disk, a heartbeat, typed failures, a size limit.

The record lets the next worker process take over what this one leaves: see `handover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from benchflow.activities.handover import NEXT_WORKER, RunningActivities
from benchflow.contracts.base import MAX_INLINE_BYTES, Model
from benchflow.contracts.failures import failure_of
from benchflow.errors import BenchFlowError, PayloadTooLargeError

log = structlog.get_logger("benchflow.activities")


class BoundaryInterceptor(Interceptor):
    """Puts `_Boundary` around every activity of a worker."""

    def __init__(self, records: RunningActivities, heartbeat_every_sec: float) -> None:
        self.records = records
        self.heartbeat_every_sec = heartbeat_every_sec

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Boundary(next, self.records, self.heartbeat_every_sec)


class _Boundary(ActivityInboundInterceptor):
    def __init__(
        self, next: ActivityInboundInterceptor, records: RunningActivities, heartbeat_every_sec: float
    ) -> None:
        super().__init__(next)
        self.records = records
        self.heartbeat_every_sec = heartbeat_every_sec

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        record = self.records.add(activity.info().task_token)
        try:
            async with _heartbeat(self._heartbeat_every()):
                result = await super().execute_activity(input)
            _check_size(result)
            return result
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.worker_shutdown and not details.cancel_requested:
                raise ApplicationError(
                    "the worker stops; another goes on", type="WorkerStopped", next_retry_delay=NEXT_WORKER
                ) from None
            raise
        except ApplicationError:
            raise
        except BenchFlowError as error:
            raise _as_application_error(error) from error
        except Exception as error:
            log.exception("an activity failed unexpectedly", activity=activity.info().activity_type)
            raise _as_application_error(error) from error
        finally:
            record.unlink(missing_ok=True)

    def _heartbeat_every(self) -> float:
        """Return the seconds between heartbeats: the worker's option, but three within the timeout that the job set."""
        timeout = activity.info().heartbeat_timeout
        return min(self.heartbeat_every_sec, timeout.total_seconds() / 3) if timeout else self.heartbeat_every_sec


def _as_application_error(error: Exception) -> ApplicationError:
    failure = failure_of(error)
    return ApplicationError(failure.message, failure, type=failure.type, non_retryable=not failure.retryable)


def _check_size(result: Any) -> None:
    if isinstance(result, Model):
        size = len(result.model_dump_json())
        if size > MAX_INLINE_BYTES:
            raise PayloadTooLargeError(
                f"{type(result).__name__} of {size} bytes is more than a workflow carries ({MAX_INLINE_BYTES})"
            )


@asynccontextmanager
async def _heartbeat(every_sec: float) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await asyncio.sleep(every_sec)
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
