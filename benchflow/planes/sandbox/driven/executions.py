"""Commands of a sandbox: each runs once, whoever asks and whoever dies; its output and its end are known exactly.

Exactly once rests on three facts: a driver starts the process of an id at most once; the id of a key's process never
changes, and is recorded on this host before the process starts; a lock per key lets one process of the engine at a time
do that.
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
from benchflow.planes.sandbox.driven.records import Records, read_command, settle_command
from benchflow.planes.sandbox.outcome import KILLED, NOT_STARTED, TIMED_OUT
from benchflow.planes.sandbox.records import file_lock, write_record
from benchflow.planes.sandbox.timeouts import Attendance, awake_timeout


@dataclass(frozen=True)
class Command:
    """What to run, as which user, where."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = "0"
    is_limited: bool = True
    """Whether it counts against the sandbox's limits."""

    is_world: bool = False
    """Whether what it starts belongs to the world, like an image's entrypoint."""

    def process(self, process_id: str, *, is_kept: bool = False) -> Process:
        """Return the process of this command. is_kept: other processes of the engine may ask for it later."""
        return Process(
            id=process_id,
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            user=self.user,
            is_limited=self.is_limited,
            is_kept=is_kept,
        )


class Processes(Protocol):
    """The processes of one sandbox, with their outputs and ends: `inside.py` or `outside.py`."""

    knows_all: bool
    """Whether `status` knows of processes that were not recorded here."""

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        """Start a process. Once it was started, that is success."""
        ...

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        """Return the status of a process once it has ended."""
        ...

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        """Return how a process fares. Raises `SandboxError` if nobody can tell how it has ended."""
        ...

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        """Return the end of a process whose time is over, if it ended while the driver did not answer.

        Raises:
            DaemonUnavailableError: It does not answer yet, so that nobody can tell.
        """
        ...

    async def kill(self, process_id: str) -> None:
        """Kill a process and all it has started; return once they are gone."""
        ...

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        """Return what a process has printed. remove: and forget it."""
        ...

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last bytes of standard output."""
        ...

    def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process, yield its output as it comes, then its exit code. Leaving early kills it."""
        ...


class Executions:
    """The commands of one sandbox."""

    def __init__(self, processes: Processes, records: Records, require: Callable[[], Awaitable[None]]) -> None:
        """Args:
        require: Raises `SandboxLostError` unless the sandbox runs.
        """
        self._processes = processes
        self._records = records
        self._require = require
        self._background: set[asyncio.Task[None]] = set()
        # Commands that `run` could not see to their end: they may outlive the outage. Whoever tries again is not to
        # find them at work.
        self._abandoned: set[str] = set()

    async def run(self, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run to the end. Cancelling kills what was started."""
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

    async def _run(self, process: Process, command: Command, timeout: float | None) -> tuple[ProcessStatus, bool]:
        """Return the end of a process, and whether its time was over."""
        # A start under way cannot be called back, so ending it means to see it through first.
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

    async def run_once(self, key: str, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run under a key, or attach to what runs or ran under it. Cancelling leaves it running."""
        file = self._records.command(key)
        async with file_lock(file.with_suffix(".lock")):
            record = await self._started(file, command)
        process_id, user = file.stem, record["user"]
        if "return_code" not in record:
            try:
                async with awake_timeout(timeout, Attendance(_attended(file), record["started_at"])):
                    status = await self._end_of(process_id, user)
                record = settle_command(file, record | _end(status))
            except TimeoutError:
                ended = await self._processes.ended_unseen(process_id, user)
                # Written before the kill: whoever sees the end of the command finds here why it ended.
                end = _end(ended) if ended is not None else {"timed_out": True, "return_code": TIMED_OUT}
                record = settle_command(file, record | end)
                await self._processes.kill(process_id)
        status = ProcessStatus(exit_code=record["return_code"], error=record.get("message"))
        return await self._result(process_id, status, record.get("timed_out", False))

    async def begin(self, key: str, command: Command) -> None:
        """Start under a key unless it was, and return without waiting for the end."""
        file = self._records.command(key)
        async with file_lock(file.with_suffix(".lock")):
            await self._started(file, command)

    async def look(self, key: str, limit: int) -> tuple[bool, int | None, str]:
        """Of what runs or ran under a key: whether it runs, its exit code, the end of its output (bytes)."""
        file = self._records.command(key)
        if not await self._is_known(file):
            return False, None, ""
        async with file_lock(file.with_suffix(".lock")):
            record = read_command(file)
            status = ProcessStatus(exit_code=record.get("return_code"))
            if status.exit_code is None:
                status = await self._processes.status(file.stem, record["user"])
                if status.exit_code is not None:
                    settle_command(file, record | _end(status))
        return status.is_running, status.exit_code, await self._processes.tail(file.stem, limit)

    async def was_started(self, key: str) -> bool:
        """Return whether the command of a key ever began."""
        file = self._records.command(key)
        if not await self._is_known(file):
            return False
        async with file_lock(file.with_suffix(".lock")):
            record = read_command(file)
            if "return_code" in record:
                return True
            return (await self._processes.status(file.stem, record["user"])).was_started is True

    async def kill_once(self, key: str) -> None:
        """Kill the command of a key with all it started. One that never was, or ended, is success."""
        file = self._records.command(key)
        if await self._is_known(file):
            async with file_lock(file.with_suffix(".lock")):
                pass
            await self._processes.kill(file.stem)

    async def stream(self, command: Command) -> AsyncIterator[ExecChunk]:
        """Run and yield output as it comes. Leaving the iteration early kills what was started."""
        async with aclosing(self._processes.stream(command.process(f"x-{secrets.token_hex(8)}"))) as chunks:
            async for chunk in chunks:
                if chunk.return_code == KILLED:
                    # Where the sandbox died, its commands seem to be killed.
                    await self._require()
                yield chunk

    async def settle(self) -> None:
        """Wait for the kills that cancellations left to do."""
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _end_of(self, process_id: str, user: str) -> ProcessStatus:
        status = await self._processes.end_of(process_id, user)
        if status.exit_code == KILLED:
            # Where the sandbox died, its commands seem to be killed.
            await self._require()
        return status

    async def _started(self, file: Path, command: Command) -> dict[str, Any]:
        """Return the record of a command, started unless it was. The lock of its key is held."""
        if await self._is_known(file):
            record = read_command(file)
            if "return_code" in record:
                return record
            status = await self._processes.status(file.stem, record["user"])
            if status.was_started:
                return settle_command(file, record | _end(status)) if status.exit_code is not None else record
            # A process died between recording and starting: time counts from now.
            _attended(file).unlink(missing_ok=True)
        record = {"user": command.user, "started_at": time.monotonic()}
        write_record(file, record)
        try:
            await self._processes.spawn(command.process(file.stem, is_kept=True), is_world=command.is_world)
        except ProcessNotStartedError as error:
            return settle_command(file, record | _end(ProcessStatus(error=error.message)))
        return record

    async def _is_known(self, file: Path) -> bool:
        """Return whether there is a record of a command. One that an earlier version has started gets one."""
        is_left = self._processes.knows_all and not file.exists()
        if is_left and (await self._processes.status(file.stem, "0")).was_started:
            write_record(file, {"user": "0", "started_at": time.monotonic()})
        return file.exists()

    async def _result(
        self, process_id: str, status: ProcessStatus, timed_out: bool, *, remove: bool = False
    ) -> SandboxExecResult:
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
        try:
            await starting
            await self._processes.kill(process_id)
            await self._processes.output(process_id, remove=True)
        except DaemonUnavailableError:
            self._abandoned.add(process_id)
            raise

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _attended(record: Path) -> Path:
    """Return the file that records for how long a worker attends to the command of a record."""
    return record.with_suffix(".attended")


def _end(status: ProcessStatus) -> dict[str, Any]:
    """Return how a process has ended, as fields of its record."""
    if status.error is not None:
        return {"return_code": NOT_STARTED, "message": status.error}
    return {"return_code": status.exit_code}
