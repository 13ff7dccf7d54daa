"""What every activity has around it: a record on disk, a heartbeat, typed failures, a size limit.

The record holds the task token of the running activity. When a worker process is gone, another one on this host
reads the records of the dead and reports their activities as failed, so that they run again at once instead of
after a heartbeat timeout. A process can die before it has recorded what it was given, or after it has removed a
record and before the server heard the result: so the server is also asked what it believes to run in the dead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import AsyncActivityHandle, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from benchflow.contracts.base import MAX_INLINE_BYTES, Model
from benchflow.contracts.failures import failure_of, typed_error
from benchflow.contracts.options import WorkerOptions
from benchflow.errors import BenchFlowError, PayloadTooLargeError, ServerUnavailableError
from benchflow.host import is_alive, start_time

log = structlog.get_logger("benchflow.activities")


NEXT_WORKER = timedelta(milliseconds=50)
"""How long an activity waits that lost its worker: it did not fail, however many workers it has had."""

OPEN_WORKFLOWS = 1000
"""Most open workflows that are asked what they wait for when a worker process is found dead."""

_RUNNING = (
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
    PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
)


_PASSING = frozenset(
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
"""Answers of a server that is away, restarts, or has too much to do."""


class RunningActivities:
    """The records of this process: `<running>/<pid>-<start time>/<number>.token`.

    host: the id of this host; with it the directory's name makes the identity under which the server knows us.
    """

    def __init__(self, root: Path, host: str) -> None:
        self.root = root
        self.host = host
        self.directory = root / f"{os.getpid()}-{start_time(os.getpid())}"
        self._count = 0

    @property
    def identity(self) -> str:
        return self._identity_of(self.directory)

    def _identity_of(self, directory: Path) -> str:
        return f"{directory.name}@{self.host}"

    def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def mark_ready(self) -> None:
        """Say that this worker asks for work."""
        (self.directory / "ready").touch()

    def add(self, token: bytes) -> Path:
        self._count += 1
        record = self.directory / f"{self._count}.token"
        partial = record.with_suffix(".new")
        partial.write_bytes(token)
        partial.replace(record)
        return record

    def of_the_dead(self) -> list[Path]:
        """The directories of worker processes that are gone."""
        dead = []
        for directory in self.root.iterdir() if self.root.is_dir() else ():
            pid, _, started = directory.name.partition("-")
            if pid.isdecimal() and not is_alive(int(pid), int(started) if started.isdecimal() else None):
                dead.append(directory)
        return dead

    async def hand_over_forever(self, client: Client, every_sec: float) -> None:
        """Hand over what worker processes of this host leave when they end, whether killed or stopped.

        every_sec: seconds between polls for processes that have died.
        """
        while True:
            if dead := self.of_the_dead():
                try:
                    count = await self._hand_over(client, dead)
                    log.info("handed over", processes=len(dead), activities=count)
                except (RPCError, FileNotFoundError) as error:
                    # The server is restarting, and the records stay; or another worker was faster.
                    log.info("handing over will be tried again", error=str(error))
            await asyncio.sleep(every_sec)

    async def _hand_over(self, client: Client, dead: Sequence[Path]) -> int:
        """Report the activities of dead processes as failed, retryably. Returns how many there were."""
        count = 0
        for directory in dead:
            for record in directory.glob("*.token"):
                count += await _fail(client.get_async_activity_handle(task_token=record.read_bytes()))
        count += await self._hand_over_unrecorded(client, {self._identity_of(directory) for directory in dead})
        for directory in dead:
            shutil.rmtree(directory, ignore_errors=True)
        return count

    async def _hand_over_unrecorded(self, client: Client, identities: set[str]) -> int:
        count = 0
        async for workflow in client.list_workflows('ExecutionStatus="Running"', limit=OPEN_WORKFLOWS):
            handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
            try:
                waits_for = (await handle.describe()).raw_description.pending_activities
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                continue
            for pending in waits_for:
                if pending.state in _RUNNING and pending.last_worker_identity in identities:
                    count += await _fail(
                        client.get_async_activity_handle(
                            workflow_id=workflow.id, run_id=workflow.run_id, activity_id=pending.activity_id
                        )
                    )
        return count


async def _fail(activity_: AsyncActivityHandle) -> int:
    """Report an activity of a dead process; 0 for one that the server knows to have ended."""
    try:
        await activity_.fail(ApplicationError("the worker died", type="WorkerDied", next_retry_delay=NEXT_WORKER))
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return 0
    return 1


class BoundaryInterceptor(Interceptor):
    """Puts `_Boundary` around every activity of a worker."""

    def __init__(self, records: RunningActivities, options: WorkerOptions) -> None:
        self.records = records
        self.options = options

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Boundary(next, self.records, self.options)


class _Boundary(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, records: RunningActivities, options: WorkerOptions) -> None:
        super().__init__(next)
        self.records = records
        self.options = options

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        record = self.records.add(activity.info().task_token)
        failures = _failures_before()
        try:
            async with _heartbeat(self._heartbeat_every(), failures):
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
        except Exception as error:
            raise self._as_application_error(error, failures) from error
        finally:
            record.unlink(missing_ok=True)

    def _heartbeat_every(self) -> float:
        """Return the seconds between heartbeats: the worker's option, but three within the timeout that the job set."""
        timeout = activity.info().heartbeat_timeout
        every_sec = self.options.heartbeat_every_sec
        return min(every_sec, timeout.total_seconds() / 3) if timeout else every_sec

    def _as_application_error(self, error: Exception, failures: int) -> ApplicationError:
        """Return the error for the server, which starts the activity again unless it is final.

        Args:
            error: What the activity raised.
            failures: How many of its attempts before this one count towards `max_failures`.
        """
        if isinstance(error, RPCError) and error.status in _PASSING:
            error = ServerUnavailableError(f"the Temporal server did not do what it was asked: {error.message}")
        failure, known = failure_of(error), typed_error(error)
        is_final = not failure.retryable
        if not is_final and not (isinstance(known, BenchFlowError) and known.is_outage):
            failures += 1
            is_final = failures >= self.options.max_failures
            # Sent before the failure is, and given to the next attempt, whichever worker has it.
            activity.heartbeat(failures)
        name, attempt = activity.info().activity_type, activity.info().attempt
        if not isinstance(known, BenchFlowError):
            # The traceback once: it is long, and the same again is the rule.
            log.error("unexpected failure", activity=name, attempt=attempt, exc_info=error if failures == 1 else None)
        elif not is_final:
            log.info("an activity will be tried again", activity=name, attempt=attempt, error=known.message)
        return ApplicationError(failure.message, failure, type=failure.type, non_retryable=is_final)


def _failures_before() -> int:
    """Return how many earlier attempts of the running activity have failed, outages and lost workers not counted."""
    details = activity.info().heartbeat_details
    return int(details[0]) if details else 0


def _check_size(result: Any) -> None:
    if isinstance(result, Model):
        size = len(result.model_dump_json())
        if size > MAX_INLINE_BYTES:
            raise PayloadTooLargeError(
                f"{type(result).__name__} of {size} bytes is more than a workflow carries ({MAX_INLINE_BYTES})"
            )


@asynccontextmanager
async def _heartbeat(every_sec: float, failures: int) -> AsyncIterator[None]:
    async def beat() -> None:
        # A heartbeat without details would take away those of the last.
        details = [failures] if failures else []
        while True:
            await asyncio.sleep(every_sec)
            activity.heartbeat(*details)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
