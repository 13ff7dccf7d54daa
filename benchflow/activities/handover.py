"""The records of running activities, and their hand-over from worker processes that are gone.

A record holds the task token of a running activity. When a worker process is gone, another one on this host
reads the records of the dead and reports their activities as failed, so that they run again at once instead of
after a heartbeat timeout. A process can die before it has recorded what it was given, or after it has removed a
record and before the server heard the result: so the server is also asked what it believes to run in the dead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import AsyncActivityHandle, Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from benchflow.errors import ServerUnavailableError
from benchflow.executions import is_not_found, require_not_found
from benchflow.host import is_alive, start_time
from benchflow.rounds import Failures

log = structlog.get_logger("benchflow.activities")


NEXT_WORKER = timedelta(milliseconds=50)
"""Delay before the next attempt of an activity that did not fail: its worker ended, or the server lost sight of it."""

OPEN_WORKFLOWS = 1000
"""Most open workflows that are asked what they wait for when a worker process is found dead."""

_RECORD_SEC = 60.0
"""Seconds that handing over one activity may take."""

_RUNNING = (
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
    PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
)


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

    @contextmanager
    def record(self, token: bytes) -> Iterator[None]:
        """Keep the record of a running activity for the block.

        On a full disk there is none: if this worker dies, the activity is tried again after its heartbeat timeout.
        """
        self._count += 1
        record = self.directory / f"{self._count}.token"
        partial = record.with_suffix(".new")
        try:
            partial.write_bytes(token)
            partial.replace(record)
        except OSError as error:
            log.warning("a running activity has no record", error=str(error))
            with suppress(OSError):
                partial.unlink()
        try:
            yield
        finally:
            # One that can't be removed must not fail the activity: handing it over, the server says that it is over.
            with suppress(OSError):
                record.unlink()

    def of_the_dead(self) -> list[Path]:
        """The directories of worker processes that are gone."""
        dead = []
        for directory in self.root.iterdir() if self.root.is_dir() else ():
            pid, _, started = directory.name.partition("-")
            if pid.isdecimal() and not is_alive(int(pid), int(started) if started.isdecimal() else None):
                dead.append(directory)
        return dead

    async def hand_over(self, client: Client, failures: Failures) -> int:
        """Report the activities of dead worker processes as failed, retryably: one round. Returns how many there were.

        The records of a process stay until all that it ran has been handed over. One that cannot be is tried again, and
        keeps no other from its turn.
        """
        failures.begin_round()
        count = 0
        left: list[Path] = []
        if dead := self.of_the_dead():
            for record in [record for directory in dead for record in directory.glob("*.token")]:
                left.append(record)
                async with failures.item(f"token {record.parent.name}/{record.name}", _RECORD_SEC):
                    count += await _fail_recorded(client, record)
                    left.remove(record)
            identities = {self._identity_of(directory) for directory in dead}
            async with failures.item("activities without a record"):
                count += await self._hand_over_unrecorded(client, identities, failures)
                for directory in dead:
                    if not any(record.parent == directory for record in left):
                        shutil.rmtree(directory, ignore_errors=True)
                log.info("handed over", processes=len(dead), activities=count)
        return count

    async def _hand_over_unrecorded(self, client: Client, identities: set[str], failures: Failures) -> int:
        """Hand over what the server believes to run in the dead. Raises `ServerUnavailableError` if any is left."""
        count = left = 0
        async for workflow in client.list_workflows('ExecutionStatus="Running"', limit=OPEN_WORKFLOWS):
            left += 1
            async with failures.item(f"workflow {workflow.id}", _RECORD_SEC):
                handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
                for pending in await _pending_activities(handle):
                    if pending.state in _RUNNING and pending.last_worker_identity in identities:
                        count += await _fail(
                            client.get_async_activity_handle(
                                workflow_id=workflow.id, run_id=workflow.run_id, activity_id=pending.activity_id
                            )
                        )
                left -= 1
        if left:
            raise ServerUnavailableError(f"{left} open workflows could not be asked for their activities")
        return count


async def _pending_activities(handle: WorkflowHandle[Any, Any]) -> Sequence[PendingActivityInfo]:
    """Return the activities that a workflow waits for; none of one that has ended meanwhile."""
    try:
        return (await handle.describe()).raw_description.pending_activities
    except RPCError as error:
        require_not_found(error)
        return ()


async def _fail_recorded(client: Client, record: Path) -> int:
    try:
        token = record.read_bytes()
    except FileNotFoundError:
        # Another worker was faster.
        return 0
    try:
        return await _fail(client.get_async_activity_handle(task_token=token))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        # Cut off, or not written before a power cut: the server is asked instead what runs in the dead.
        log.warning("a record of a running activity is no token", record=record.name)
        return 0


async def _fail(activity_: AsyncActivityHandle) -> int:
    """Report an activity of a dead process; 0 for one that the server knows to have ended."""
    try:
        await activity_.fail(ApplicationError("the worker died", type="WorkerDied", next_retry_delay=NEXT_WORKER))
    except RPCError as error:
        if not is_not_found(error):
            raise
        return 0
    return 1
