"""Processes whose outputs and ends lie in the sandbox: for drivers that only start processes and say whether they run.

What the driver says of an exit code goes before the file that a wrapped command leaves, which counts only where the
driver can't tell, or has missed the end.
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
from benchflow.planes.sandbox.driven.hunting import Hunter
from benchflow.planes.sandbox.driven.records import Records
from benchflow.planes.sandbox.driven.scripts import Scripts
from benchflow.planes.sandbox.driven.wrapped import BEGUN, MARKER, CommandFiles, unlogged, wrapped
from benchflow.planes.sandbox.outcome import KILLED, WATCH_EVERY
from benchflow.planes.sandbox.timeouts import AwakeDeadline

NOTICE_SEC = 5.0
"""Seconds that a driver has to note the end of a command of which no process is left."""

_COMING_SEC = 30.0
"""Seconds for a command to begin after its driver has started it."""

KILL_PATIENCE = 60.0
"""Seconds for a killed command to be gone: a process that waits for the disk does so first."""

_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.05, 1.0
"""Between two looks at a process whose driver does not tell its end."""


class ProcessesInside:
    """The processes of one sandbox."""

    knows_all = False

    def __init__(
        self, driver: SandboxDriver, handle: str, scripts: Scripts, records: Records, form: str, files: CommandFiles
    ) -> None:
        self._driver = driver
        self._handle = handle
        self._scripts = scripts
        self._records = records
        self._files = files
        self.hunter = Hunter(driver, handle, scripts, records, form, self._print_as)
        # Commands that were started here, until something is seen of them.
        self._coming: dict[str, AwakeDeadline] = {}
        # When a command that runs, as the driver says, was first seen to have left its exit code.
        self._unnoticed: dict[str, float] = {}

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        await self._files.make(process.id, process.user)
        marked = process.model_copy(update={"env": process.env | {MARKER: process.id}})
        self._coming[process.id] = AwakeDeadline(_COMING_SEC)
        await self._driver.spawn(self._handle, wrapped(marked, is_world=is_world))

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        waiting = asyncio.ensure_future(self._wait(process_id, user))
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=WATCH_EVERY)
                if not waiting.done():
                    await self._files.trim(process_id)
                    if (ended := await self._missed(process_id, user)) is not None:
                        return ended
            return waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _wait(self, process_id: str, user: str) -> ProcessStatus:
        """Return the end of a process, as the driver tells it, or by looking from time to time."""
        if isinstance(self._driver, AwaitsProcesses):
            status = await self._driver.wait(self._handle, process_id)
            if _is_told(status):
                return status
        pause = _FIRST_PAUSE_SEC
        while (status := await self.status(process_id, user)).is_running:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SEC)
        return status

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        status = await self._driver.status(self._handle, process_id)
        if status.is_running or _is_told(status) or status.was_started is False:
            return status.model_copy(update={"was_started": status.was_started is not False})
        # The driver can't tell. The line comes first: most often it is enough.
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
        # Asked again, since it may have ended between the two questions.
        line = await self._files.exit_line(process_id) or ""
        if line.strip().isdigit():
            return ProcessStatus(was_started=True, exit_code=int(line))
        if is_running or (line and not line.strip()):
            return ProcessStatus(was_started=is_running, is_running=is_running)
        if line.strip() == BEGUN and status.was_started is None:
            # Its shell leaves a code whatever happens to the command, unless it is killed itself.
            return ProcessStatus(was_started=True, exit_code=KILLED)
        raise SandboxError("a command's end was not seen: its processes are gone and left no exit code")

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        await self._driver.ping()
        giving_up = AwakeDeadline(2 * NOTICE_SEC)
        while True:
            status: ProcessStatus | None = await self.status(process_id, user)
            assert status is not None
            if not _is_told(status):
                status = await self._missed(process_id, user) if process_id in self._unnoticed else None
            if status is not None or process_id not in self._unnoticed or giving_up.is_over():
                return status
            await asyncio.sleep(0.2)

    async def kill(self, process_id: str) -> None:
        if await self._driver.kill(self._handle, process_id):
            return
        began, giving_up = time.monotonic(), AwakeDeadline(KILL_PATIENCE)
        while True:
            await self.hunter.kill_marked(self._records.mark(process_id))
            status = await self._driver.status(self._handle, process_id)
            # None of its processes is left after a while, whatever the driver has missed.
            if not status.is_running or time.monotonic() - began > NOTICE_SEC:
                return
            if giving_up.is_over():
                raise SandboxError("a command could not be killed")
            await asyncio.sleep(0.02)

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        self._unnoticed.pop(process_id, None)
        self._coming.pop(process_id, None)
        return await self._files.output(process_id, remove=remove)

    async def tail(self, process_id: str, limit: int) -> str:
        await self._files.trim(process_id)
        return await self._files.tail(process_id, limit)

    async def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        if isinstance(self._driver, StreamsProcesses):
            marked = process.model_copy(update={"env": process.env | {MARKER: process.id}})
            chunks = self._driver.stream(self._handle, unlogged(marked))
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
        """Kill what the agent has left running; the number killed."""
        killed = await self.hunter.kill_unknown(keep_services)
        await self._scripts.renew()
        return killed

    async def mark_baseline(self, process_id: str | None, *, is_all: bool, is_restored: bool) -> None:
        """Record as the world's: all that runs, or a command's processes, or what the entrypoint has started."""
        if is_restored:
            await self.hunter.add_entrypoint()
        elif is_all:
            await self.hunter.mark_baseline()
        elif process_id is not None:
            await self.hunter.add_to_baseline(self._records.mark(process_id))

    async def _stream_files(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Stream by looking at the files of a command's outputs from time to time."""
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
        """Return the end of a command that the driver has missed; None while it may run, or be noted yet.

        To be asked from time to time while it runs, but not where an answer may not wait: processes of the sandbox can
        hold up the shell.
        """
        line = (await self._files.exit_line(process_id) or "").strip()
        if not line.isdigit():
            return None
        since = self._unnoticed.setdefault(process_id, time.monotonic())
        if time.monotonic() - since < NOTICE_SEC or await self.hunter.any_marked(self._records.mark(process_id), user):
            return None
        return ProcessStatus(exit_code=int(line))

    async def _print_as(self, user: str, script: str) -> bytes:
        """Run a script as a user, and return what it prints."""
        process = Process(id=f"l-{secrets.token_hex(8)}", argv=("/bin/sh", "-c", script), user=user, is_limited=False)
        await self.spawn(process, is_world=False)
        await self.end_of(process.id, "0")
        output = await self._files.output(process.id, remove=True)
        return output.stdout.encode(errors="replace")


def _is_told(status: ProcessStatus) -> bool:
    """Return whether the driver has told the end of a process."""
    return status.exit_code is not None or status.error is not None
