"""Commands of a sandbox: each runs exactly once, whichever process asks or dies; its output and exit code are retained.

Exactly once rests on three facts: a driver starts the process of an id at most once; the process id of a key never
changes, and is recorded on this host before the process starts; and a lock per key admits one process of the engine at
a time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.contracts.driver import Process, ProcessStatus
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult
from benchflow.errors import DaemonUnavailableError, ProcessNotStartedError
from benchflow.host_files import hold_lock_async, write_record
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords, read_command, settle_command
from benchflow.planes.sandbox.outcome import KILLED, NOT_STARTED, TIMED_OUT
from benchflow.planes.sandbox.timeouts import Attendance, awake_timeout


@dataclass(frozen=True)
class CommandRequest:
    """A command to run."""

    argv: tuple[str, ...]
    """Program and its arguments."""

    env: dict[str, str] = field(default_factory=dict)
    """Variables besides those of the sandbox."""

    cwd: str = "/"
    """Absolute working directory."""

    user: str = "0"
    """Name or uid, either with an optional `:group`; `0` is root."""

    is_limited: bool = True
    """Whether it counts against the sandbox's limits."""

    is_world: bool = False
    """Whether the processes that it starts belong to the world, as those of an image's entrypoint."""

    def process(self, process_id: str, *, is_kept: bool = False) -> Process:
        """Return the driver's process for this command.

        Args:
            process_id: Id of the process.
            is_kept: Whether other processes of the engine may ask for its status and output later.
        """
        return Process(
            id=process_id,
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            user=self.user,
            is_limited=self.is_limited,
            is_kept=is_kept,
        )


class SandboxProcesses(Protocol):
    """The processes of one sandbox, with their outputs and exit codes: `ProcessesInside` or `ProcessesOutside`."""

    knows_all: bool
    """Whether `status` also knows processes of which this host has no record."""

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        """Start a process and return without waiting for its end. Success if it was started already.

        Args:
            process: The process.
            is_world: Whether the processes that it starts belong to the world.
        """
        ...

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        """Wait until a process has ended and return its status. user: as whom it runs."""
        ...

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        """Return the status of a process. Raise `SandboxError` if it has ended and its exit code is lost."""
        ...

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        """Return the status of a process at its timeout, if it ended while the driver did not answer; else None.

        Raises:
            DaemonUnavailableError: The driver does not answer yet, so that this is unknown.
        """
        ...

    async def kill(self, process_id: str) -> None:
        """Kill a process and all its descendants; return once they are gone."""
        ...

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        """Return the output of a process. remove: whether to delete what is stored of it."""
        ...

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last `limit` bytes of stdout as text."""
        ...

    def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code. Leaving early kills it."""
        ...


class Executions:
    """Runs the commands of one sandbox."""

    def __init__(
        self, processes: SandboxProcesses, records: SandboxRecords, require: Callable[[], Awaitable[None]]
    ) -> None:
        """Make it.

        Args:
            processes: Processes of the sandbox.
            records: Records of the sandbox on this host.
            require: Callback that raises `SandboxLostError` unless the sandbox runs.
        """
        self._processes = processes
        self._records = records
        self._require = require
        self._background: set[asyncio.Task[None]] = set()
        # Ids of the processes that `run` could not kill since the daemon was away. They may outlive the outage, and are
        # killed before the next `run`: a retry must not find them at work.
        self._abandoned: set[str] = set()

    async def run(self, command: CommandRequest, timeout: float | None) -> SandboxExecResult:
        """Run a command to its end and return its result. Cancelling kills the command.

        Args:
            command: The command.
            timeout: Seconds after which it is killed; None for no limit.
        """
        for abandoned in tuple(self._abandoned):
            await self._processes.kill(abandoned)
            self._abandoned.discard(abandoned)
        process = command.process(f"x-{secrets.token_hex(8)}")
        try:
            status, timed_out = await self._run(process, command, timeout)
        except DaemonUnavailableError:
            self._abandoned.add(process.id)
            raise
        return await self._result(process.id, status, timed_out, remove=True)

    async def _run(
        self, process: Process, command: CommandRequest, timeout: float | None
    ) -> tuple[ProcessStatus, bool]:
        """Run a process to its end; return its status and whether it timed out."""
        # A start under way cannot be taken back: to end the process, the start must be completed first.
        starting = asyncio.ensure_future(self._processes.spawn(process, is_world=command.is_world))
        try:
            async with awake_timeout(timeout):
                await asyncio.shield(starting)
                return await self._end_of(process.id, process.user), False
        except ProcessNotStartedError as error:
            return ProcessStatus(error=error.message), False
        except TimeoutError:
            ended = await self._processes.ended_unseen(process.id, process.user) if starting.done() else None
            if ended is not None:
                return ended, False
            await starting
            await self._processes.kill(process.id)
            return ProcessStatus(exit_code=TIMED_OUT), True
        except asyncio.CancelledError:
            self._later(self._kill_cancelled(process.id, starting))
            raise

    async def run_once(self, key: str, command: CommandRequest, timeout: float | None) -> SandboxExecResult:
        """Run a command under a key, or attach to the one that was started, and return its result.

        Cancelling leaves the command running.

        Args:
            key: Idempotency key.
            command: The command.
            timeout: Seconds after which it is killed, without those in which no process of the engine waited for it.
        """
        file = self._records.command(key)
        async with hold_lock_async(file.with_suffix(".lock")):
            record = await self._started(file, command)
        process_id, user = file.stem, record["user"]
        if "return_code" not in record:
            try:
                async with awake_timeout(timeout, Attendance(_locate_attendance(file), record["started_at"])):
                    status = await self._end_of(process_id, user)
                record = settle_command(file, record | _format_end(status))
            except TimeoutError:
                ended = await self._processes.ended_unseen(process_id, user)
                # Written before the kill: a process that sees the end of the command finds the reason in the record.
                end = _format_end(ended) if ended is not None else {"timed_out": True, "return_code": TIMED_OUT}
                record = settle_command(file, record | end)
                await self._processes.kill(process_id)
        status = ProcessStatus(exit_code=record["return_code"], error=record.get("message"))
        return await self._result(process_id, status, record.get("timed_out", False))

    async def begin(self, key: str, command: CommandRequest) -> None:
        """Start a command under a key, unless it was started, and return without waiting for its end."""
        file = self._records.command(key)
        async with hold_lock_async(file.with_suffix(".lock")):
            await self._started(file, command)

    async def look(self, key: str, limit: int) -> tuple[bool, int | None, str]:
        """Return the state of the command under a key.

        Args:
            key: Idempotency key.
            limit: Maximum bytes of output.

        Returns:
            Whether it runs, its exit code (None while it runs), and the end of its stdout. Values of a command that was
                never started are False, None and empty.
        """
        file = self._records.command(key)
        if not await self._is_known(file):
            return False, None, ""
        async with hold_lock_async(file.with_suffix(".lock")):
            record = read_command(file)
            status = ProcessStatus(exit_code=record.get("return_code"))
            if status.exit_code is None:
                status = await self._processes.status(file.stem, record["user"])
                if status.exit_code is not None:
                    settle_command(file, record | _format_end(status))
        return status.is_running, status.exit_code, await self._processes.tail(file.stem, limit)

    async def was_started(self, key: str) -> bool:
        """Return whether the command under a key was ever started."""
        file = self._records.command(key)
        if not await self._is_known(file):
            return False
        async with hold_lock_async(file.with_suffix(".lock")):
            record = read_command(file)
            if "return_code" in record:
                return True
            return (await self._processes.status(file.stem, record["user"])).was_started is True

    async def kill_once(self, key: str) -> None:
        """Kill the command under a key with all its descendants. Success if it never started, or has ended."""
        file = self._records.command(key)
        if await self._is_known(file):
            async with hold_lock_async(file.with_suffix(".lock")):
                pass
            await self._processes.kill(file.stem)

    async def stream(self, command: CommandRequest) -> AsyncIterator[ExecChunk]:
        """Run a command and yield its output as it comes, then its exit code. Leaving early kills it."""
        async with aclosing(self._processes.stream(command.process(f"x-{secrets.token_hex(8)}"))) as chunks:
            async for chunk in chunks:
                if chunk.return_code == KILLED:
                    # When a sandbox ends, its commands end with the same status as by a kill.
                    await self._require()
                yield chunk

    async def settle(self) -> None:
        """Wait for the kills of cancelled commands that still run in the background."""
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _end_of(self, process_id: str, user: str) -> ProcessStatus:
        """Return the status of a process once it has ended. Raise `SandboxLostError` if the sandbox ended with it."""
        status = await self._processes.end_of(process_id, user)
        if status.exit_code == KILLED:
            # When a sandbox ends, its commands end with the same status as by a kill.
            await self._require()
        return status

    async def _started(self, file: Path, command: CommandRequest) -> dict[str, Any]:
        """Return the record of a command, which is started unless it was. The caller holds the lock of its key."""
        if await self._is_known(file):
            record = read_command(file)
            if "return_code" in record:
                return record
            status = await self._processes.status(file.stem, record["user"])
            if status.was_started:
                return settle_command(file, record | _format_end(status)) if status.exit_code is not None else record
            # A process of the engine died between recording and starting: the timeout counts from now.
            _locate_attendance(file).unlink(missing_ok=True)
        record = {"user": command.user, "started_at": time.monotonic()}
        write_record(file, record)
        try:
            await self._processes.spawn(command.process(file.stem, is_kept=True), is_world=command.is_world)
        except ProcessNotStartedError as error:
            return settle_command(file, record | _format_end(ProcessStatus(error=error.message)))
        return record

    async def _is_known(self, file: Path) -> bool:
        """Return whether a command has a record; make one for a command that an earlier version started."""
        is_left = self._processes.knows_all and not file.exists()
        if is_left and (await self._processes.status(file.stem, "0")).was_started:
            write_record(file, {"user": "0", "started_at": time.monotonic()})
        return file.exists()

    async def _result(
        self, process_id: str, status: ProcessStatus, timed_out: bool, *, remove: bool = False
    ) -> SandboxExecResult:
        """Return the result of a process that has ended, with its output. remove: whether to delete that."""
        if status.error is not None:
            return SandboxExecResult(return_code=NOT_STARTED, stderr=status.error)
        assert status.exit_code is not None
        output = await self._processes.output(process_id, remove=remove)
        return SandboxExecResult(
            return_code=status.exit_code,
            stdout=output.stdout,
            stderr=output.stderr,
            timed_out=timed_out,
            truncated=output.truncated,
        )

    async def _kill_cancelled(self, process_id: str, starting: asyncio.Future[None]) -> None:
        """Kill a process whose `run` was cancelled, once its start is completed, and delete its output."""
        try:
            await starting
            await self._processes.kill(process_id)
            await self._processes.output(process_id, remove=True)
        except DaemonUnavailableError:
            self._abandoned.add(process_id)
            raise

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; `settle` waits for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _locate_attendance(record: Path) -> Path:
    """Return the file that counts the seconds in which a worker waits for the command of a record."""
    return record.with_suffix(".attended")


def _format_end(status: ProcessStatus) -> dict[str, Any]:
    """Return a process's exit code, or why it was not started, as fields of its record."""
    if status.error is not None:
        return {"return_code": NOT_STARTED, "message": status.error}
    return {"return_code": status.exit_code}
