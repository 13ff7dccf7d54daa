"""Processes whose outputs and exit codes are in the sandbox, for drivers that can only start processes.

An exit code from the driver takes precedence over the file that a wrapped command writes. The file counts only if the
driver has no status, or has missed the end.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from benchflow.contracts.accelerators import AwaitsProcesses, ProcessOutput, StreamsProcesses
from benchflow.contracts.driver import Process, ProcessStatus, SandboxDriver
from benchflow.contracts.sandbox import ExecChunk
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.hunting import Hunter
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.wrapped import MARKER, STARTED, CommandFiles, wrap_process, wrap_unlogged
from benchflow.planes.sandbox.outcome import KILLED, OUTPUT_POLL_SEC
from benchflow.planes.sandbox.timeouts import AwakeDeadline

NOTICE_SEC = 5.0
"""Seconds within which a driver must report the end of a command that has no process left."""

_BEGIN_TIMEOUT_SEC = 30.0
"""Seconds within which a command must begin after its driver has started it."""

KILL_TIMEOUT_SEC = 60.0
"""Seconds within which a killed command must be gone. A process in disk I/O ends only once that is done."""

_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.05, 1.0
"""Shortest and longest interval between two polls of a process whose driver cannot wait for its end."""


class ProcessesInside:
    """The processes of one sandbox, over the basic methods of a driver. Implements `executions.Processes`."""

    knows_all = False

    def __init__(
        self,
        driver: SandboxDriver,
        handle: str,
        scripts: EngineScripts,
        records: SandboxRecords,
        form: str,
        files: CommandFiles,
    ) -> None:
        """Make it.

        Args:
            driver: Driver of the sandbox.
            handle: The driver's handle of it.
            scripts: Runner of scripts in it.
            records: Records of it on this host.
            form: How it runs its image's entrypoint, as `SandboxSpec.entrypoint`.
            files: Directories of its commands.
        """
        self._driver = driver
        self._handle = handle
        self._scripts = scripts
        self._records = records
        self._files = files
        self.hunter = Hunter(driver, handle, scripts, records, form, self._print_as)
        # Ids of commands that this object started, until one of their processes or files is seen.
        self._coming: dict[str, AwakeDeadline] = {}
        # When a command was first seen with an exit code in its file, while it runs according to the driver.
        self._unnoticed: dict[str, float] = {}

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        """Start a process behind a shell that writes its outputs and exit code to files."""
        await self._files.make(process.id, process.user)
        marked = process.model_copy(update={"env": process.env | {MARKER: process.id}})
        self._coming[process.id] = AwakeDeadline(_BEGIN_TIMEOUT_SEC)
        await self._driver.spawn(self._handle, wrap_process(marked, is_world=is_world))

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        """Wait until a process has ended and return its status. Large outputs are trimmed meanwhile."""
        waiting = asyncio.ensure_future(self._wait(process_id, user))
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=OUTPUT_POLL_SEC)
                if not waiting.done():
                    await self._files.trim(process_id)
                    if (ended := await self._missed(process_id, user)) is not None:
                        return ended
            return waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _wait(self, process_id: str, user: str) -> ProcessStatus:
        """Wait for the end of a process, by the driver if it can, else by polling, and return its status."""
        if isinstance(self._driver, AwaitsProcesses):
            status = await self._driver.wait(self._handle, process_id)
            if _has_ended(status):
                return status
        pause = _FIRST_PAUSE_SEC
        while (status := await self.status(process_id, user)).is_running:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SEC)
        return status

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        """Return the status of a process, by the driver, its exit file and the sandbox's process table.

        Raises:
            SandboxError: No process of it is left, and neither the driver nor the file has an exit code.
        """
        status = await self._driver.status(self._handle, process_id)
        if status.is_running or _has_ended(status) or status.was_started is False:
            return status.model_copy(update={"was_started": status.was_started is not False})
        # The driver can't tell. The file is read first, since it is cheaper than the process table and mostly
        # sufficient.
        line = await self._files.exit_line(process_id)
        if line is not None and line.strip().isdigit():
            return ProcessStatus(was_started=True, exit_code=int(line))
        if line is None and status.was_started is None:
            return ProcessStatus(was_started=False)
        coming = self._coming.get(process_id)
        if line is not None and not line.strip() and coming is not None and not coming.is_over():
            return ProcessStatus(was_started=True, is_running=True)
        self._coming.pop(process_id, None)
        is_running = await self.hunter.any_marked(self._records.mark(process_id), user)
        # Read again, since the command may have ended after the first read.
        line = await self._files.exit_line(process_id) or ""
        if line.strip().isdigit():
            return ProcessStatus(was_started=True, exit_code=int(line))
        if is_running or (line and not line.strip()):
            return ProcessStatus(was_started=is_running, is_running=is_running)
        if line.strip() == STARTED and status.was_started is None:
            # The shell writes a code whatever happens to the command, unless it is killed itself.
            return ProcessStatus(was_started=True, exit_code=KILLED)
        raise SandboxError("a command's end was not seen: its processes are gone and left no exit code")

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        """Return the status of a process at its timeout, if it ended while the driver did not answer; else None.

        Raises:
            DaemonUnavailableError: The driver does not answer yet.
        """
        await self._driver.ping()
        giving_up = AwakeDeadline(2 * NOTICE_SEC)
        while True:
            status: ProcessStatus | None = await self.status(process_id, user)
            assert status is not None
            if not _has_ended(status):
                status = await self._missed(process_id, user) if process_id in self._unnoticed else None
            if status is not None or process_id not in self._unnoticed or giving_up.is_over():
                return status
            await asyncio.sleep(0.2)

    async def kill(self, process_id: str) -> None:
        """Kill a process and all its descendants; return once they are gone.

        Raises:
            SandboxError: Some are left after `KILL_TIMEOUT_SEC`.
        """
        if await self._driver.kill(self._handle, process_id):
            return
        began, giving_up = time.monotonic(), AwakeDeadline(KILL_TIMEOUT_SEC)
        while True:
            await self.hunter.kill_marked(self._records.mark(process_id))
            status = await self._driver.status(self._handle, process_id)
            # After `NOTICE_SEC` none of its processes is left, even if the driver has missed the end.
            if not status.is_running or time.monotonic() - began > NOTICE_SEC:
                return
            if giving_up.is_over():
                raise SandboxError("a command could not be killed")
            await asyncio.sleep(0.02)

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        """Return the output of a process. remove: whether to delete its files."""
        self._unnoticed.pop(process_id, None)
        self._coming.pop(process_id, None)
        return await self._files.output(process_id, remove=remove)

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last `limit` bytes of stdout as text."""
        await self._files.trim(process_id)
        return await self._files.tail(process_id, limit)

    async def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code. Leaving early kills it."""
        if isinstance(self._driver, StreamsProcesses):
            marked = process.model_copy(update={"env": process.env | {MARKER: process.id}})
            chunks = self._driver.stream(self._handle, wrap_unlogged(marked))
        else:
            chunks = self._stream_files(process)
        is_over = False
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    is_over = chunk.stream == "exit"
                    yield chunk
        finally:
            if not is_over:
                await asyncio.shield(self.kill(process.id))

    async def kill_unknown(self, *, keep_services: bool) -> int:
        """Kill the processes that the agent has left running, and return how many were killed.

        Args:
            keep_services: Whether the world's processes are spared, too.
        """
        killed = await self.hunter.kill_unknown(keep_services)
        await self._scripts.renew()
        return killed

    async def mark_baseline(self, process_id: str | None, *, is_all: bool, is_restored: bool) -> None:
        """Record processes as the world's.

        Args:
            process_id: Command whose processes are added; None for none.
            is_all: Whether all that run now replace the recorded ones.
            is_restored: Whether those of the entrypoint are added. Takes precedence over the others.
        """
        if is_restored:
            await self.hunter.add_entrypoint()
        elif is_all:
            await self.hunter.mark_baseline()
        elif process_id is not None:
            await self.hunter.add_to_baseline(self._records.mark(process_id))

    async def _stream_files(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process, poll the files of its outputs, and yield them, then the exit code."""
        await self.spawn(process, is_world=False)
        read = {"stdout": 0, "stderr": 0}
        pause, is_over = _FIRST_PAUSE_SEC, False
        while not is_over:
            status = await self.status(process.id, process.user)
            is_over = not status.is_running
            pieces = await self._files.after(process.id, read["stdout"], read["stderr"])
            for stream, piece in pieces.items():
                if piece:
                    read[stream] += len(piece)
                    yield ExecChunk(stream=stream, data=piece)
            pause = _FIRST_PAUSE_SEC if any(pieces.values()) else min(pause * 1.5, _LONGEST_PAUSE_SEC)
            if not is_over:
                await asyncio.sleep(pause)
        if status.error is not None:
            yield ExecChunk(stream="stderr", data=status.error.encode())
        await self._files.output(process.id, remove=True)
        yield ExecChunk(stream="exit", return_code=status.exit_code)

    async def _missed(self, process_id: str, user: str) -> ProcessStatus | None:
        """Return the status of a command whose end the driver has missed; None if it may run or be reported yet.

        To be polled while the command runs, but not where the caller needs a prompt answer: processes of the sandbox
        can delay the shell.
        """
        line = (await self._files.exit_line(process_id) or "").strip()
        if not line.isdigit():
            return None
        since = self._unnoticed.setdefault(process_id, time.monotonic())
        if time.monotonic() - since < NOTICE_SEC or await self.hunter.any_marked(self._records.mark(process_id), user):
            return None
        return ProcessStatus(exit_code=int(line))

    async def _print_as(self, user: str, script: str) -> bytes:
        """Run a script as a user, and return its stdout."""
        process = Process(id=f"l-{secrets.token_hex(8)}", argv=("/bin/sh", "-c", script), user=user, is_limited=False)
        await self.spawn(process, is_world=False)
        await self.end_of(process.id, "0")
        output = await self._files.output(process.id, remove=True)
        return output.stdout.encode(errors="replace")


def _has_ended(status: ProcessStatus) -> bool:
    """Return whether the driver has reported the end of a process."""
    return status.exit_code is not None or status.error is not None
