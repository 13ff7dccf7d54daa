"""The records of running activities, and the hand-over of activities from dead worker processes.

A record holds the task token of a running activity. After a worker process has died, another one on this host reads its
records and reports its activities as failed, so that they are retried at once instead of after a heartbeat timeout. A
process can die before it has recorded an activity, or after it has removed a record and before the server received the
result: so the server is also asked which activities it believes to run in dead processes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import AsyncActivityHandle, Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from benchflow.contracts.fixed_durations import HANDOVER_SEC, NEXT_WORKER
from benchflow.errors import ServerUnavailableError, StackError
from benchflow.host_files import create_atomic
from benchflow.process_identity import is_alive, read_start_time
from benchflow.rounds import Failures
from benchflow.workflow_executions import is_not_found, require_not_found

log = structlog.get_logger("benchflow.activities")


OPEN_WORKFLOWS = 1000
"""Maximum number of open workflows whose pending activities are listed when a worker process is found dead."""

_RUNNING = (
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
    PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
)


class RunningActivities:
    """The records of this process's running activities: `<root>/<pid>-<start time>/<number>.token`.

    Args:
        root: Directory of the records of all worker processes of this host.
        host: Id of this host. The worker identity on the server is `<pid>-<start time>@<host>`.
    """

    def __init__(self, root: Path, host: str) -> None:
        """Make it. `open` creates the directory."""
        self.root = root
        self.host = host
        self.directory = root / f"{os.getpid()}-{read_start_time(os.getpid())}"
        self._count = 0

    @property
    def identity(self) -> str:
        """Return the worker identity of this process on the server."""
        return self._format_identity(self.directory)

    def _format_identity(self, directory: Path) -> str:
        return f"{directory.name}@{self.host}"

    def open(self) -> None:
        """Create the directory of this process's records, unless it exists."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def mark_ready(self) -> None:
        """Write the file `ready`, which tells other processes that this worker polls for tasks."""
        (self.directory / "ready").touch()

    @contextmanager
    def record(self, token: bytes) -> Iterator[None]:
        """Hold a record of a running activity on disk for the block.

        If it can't be written, e.g. on a full disk, the activity runs without one.

        Args:
            token: The activity's task token.
        """
        self._count += 1
        record = self.directory / f"{self._count}.token"
        try:
            with create_atomic(record) as file:
                file.write(token)
        except OSError as error:
            log.warning("a running activity has no record", error=str(error))
        try:
            yield
        finally:
            # An error here must not fail the activity. A record that stays does no harm: the server reports the
            # activity as ended when it is handed over.
            with suppress(OSError):
                record.unlink()

    def find_dead(self) -> list[Path]:
        """Return the directories of records of worker processes that no longer run."""
        dead = []
        for directory in self.root.iterdir() if self.root.is_dir() else ():
            pid, _, started = directory.name.partition("-")
            if pid.isdecimal() and not is_alive(int(pid), int(started) if started.isdecimal() else None):
                dead.append(directory)
        return dead

    async def hand_over(self, client: Client, failures: Failures) -> int:
        """Report the activities of dead worker processes as failed and retryable, and return their number.

        The records of a process stay until all of its activities have been handed over. An activity that can't be
        handed over now is tried again in the next round, and does not hold up the others. Handing over twice is
        harmless: the server rejects the report of an activity attempt that has ended.

        Args:
            client: Connection to the server.
            failures: Receives the errors of single activities: they are not raised.
        """
        failures.begin_round()
        count = 0
        left: list[Path] = []
        if dead := self.find_dead():
            for record in [record for directory in dead for record in directory.glob("*.token")]:
                left.append(record)
                async with failures.item(f"token {record.parent.name}/{record.name}", HANDOVER_SEC):
                    count += await _fail_recorded(client, record)
                    left.remove(record)
            identities = {self._format_identity(directory) for directory in dead}
            async with failures.item("activities without a record"):
                count += await self._hand_over_unrecorded(client, identities, failures)
                for directory in dead:
                    if not any(record.parent == directory for record in left):
                        shutil.rmtree(directory, ignore_errors=True)
                log.info("handed over", processes=len(dead), activities=count)
        return count

    async def _hand_over_unrecorded(self, client: Client, identities: set[str], failures: Failures) -> int:
        """Hand over the activities that the server believes to run in dead processes, and return their number.

        Raises:
            ServerUnavailableError: Some of the open workflows could not be asked.
        """
        count = left = 0
        async for workflow in client.list_workflows('ExecutionStatus="Running"', limit=OPEN_WORKFLOWS):
            left += 1
            async with failures.item(f"workflow {workflow.id}", HANDOVER_SEC):
                handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
                for pending in await _list_pending(handle):
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


async def _list_pending(handle: WorkflowHandle[Any, Any]) -> Sequence[PendingActivityInfo]:
    """Return the pending activities of a workflow; none if the server does not know it any more."""
    try:
        return (await handle.describe()).raw_description.pending_activities
    except RPCError as error:
        require_not_found(error)
        return ()


async def _fail_recorded(client: Client, record: Path) -> int:
    """Report the activity of a record as failed; return 1, or 0 if it had ended or the record is gone or invalid."""
    try:
        token = record.read_bytes()
    except FileNotFoundError:
        # Another worker has handed it over.
        return 0
    try:
        return await _fail(client.get_async_activity_handle(task_token=token))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        # Truncated by a full disk or a power cut: the activity is found by asking the server for those of the dead.
        log.warning("a record of a running activity is no token", record=record.name)
        return 0


async def _fail(activity_: AsyncActivityHandle) -> int:
    """Report an activity of a dead process as failed; return 1, or 0 if it had ended already."""
    try:
        await activity_.fail(
            ApplicationError("the worker died", type=StackError.__name__, next_retry_delay=NEXT_WORKER)
        )
    except RPCError as error:
        if not is_not_found(error):
            raise
        return 0
    return 1
