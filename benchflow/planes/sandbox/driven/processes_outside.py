"""Processes of a driver that stores outputs and exit codes out of the sandbox's reach, and knows all descendants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from benchflow.contracts.accelerators import KeepsProcesses, ProcessOutput
from benchflow.contracts.driver import Process, ProcessStatus
from benchflow.contracts.sandbox import ExecChunk
from benchflow.planes.sandbox.outcome import OUTPUT_POLL_SEC


class ProcessesOutside:
    """The processes of one sandbox, over a driver with `KeepsProcesses`. Implements `executions.Processes`."""

    knows_all = True

    def __init__(self, driver: KeepsProcesses, handle: str) -> None:
        """Make it. handle: the driver's handle of the sandbox."""
        self._driver = driver
        self._handle = handle

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        """Start a process; the driver knows without `is_world` which processes it starts."""
        await self._driver.spawn(self._handle, process)

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        """Wait until a process has ended and return its status. Large outputs are trimmed meanwhile."""
        while True:
            try:
                async with asyncio.timeout(OUTPUT_POLL_SEC) as watch:
                    return await self._driver.wait(self._handle, process_id)
            except TimeoutError:
                if not watch.expired():
                    raise
            await self._driver.trim_output(self._handle, process_id)

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        """Return the status of a process. Raise `SandboxError` if it has ended with an unknown exit code."""
        return await self._driver.status(self._handle, process_id)

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        """Return the status of a process if it has ended; else None."""
        status = await self.status(process_id, user)
        return None if status.is_running or status.exit_code is None else status

    async def kill(self, process_id: str) -> None:
        """Kill a process and all its descendants."""
        await self._driver.kill(self._handle, process_id)

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        """Return the output of a process. remove: whether the driver then deletes it."""
        try:
            return await self._driver.output(self._handle, process_id)
        finally:
            if remove:
                await self._driver.forget(self._handle, process_id)

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last `limit` bytes of stdout as text, after too large outputs are trimmed."""
        await self._driver.trim_output(self._handle, process_id)
        return await self._driver.output_tail(self._handle, process_id, limit)

    def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code. Leaving early kills it."""
        return self._driver.stream(self._handle, process)
