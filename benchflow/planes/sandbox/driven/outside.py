"""Processes of which a driver keeps outputs and ends where the sandbox can't reach them, and knows the descendants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from benchflow.contracts.accelerators import KeepsProcesses, ProcessOutput
from benchflow.contracts.driver import Process, ProcessStatus
from benchflow.contracts.sandbox import ExecChunk
from benchflow.planes.sandbox.outcome import WATCH_EVERY


class ProcessesOutside:
    """The processes of one sandbox."""

    knows_all = True

    def __init__(self, driver: KeepsProcesses, handle: str) -> None:
        self._driver = driver
        self._handle = handle

    async def spawn(self, process: Process, *, is_world: bool) -> None:
        await self._driver.spawn(self._handle, process)

    async def end_of(self, process_id: str, user: str) -> ProcessStatus:
        while True:
            try:
                async with asyncio.timeout(WATCH_EVERY) as watch:
                    return await self._driver.wait(self._handle, process_id)
            except TimeoutError:
                if not watch.expired():
                    raise
            await self._driver.trim_output(self._handle, process_id)

    async def status(self, process_id: str, user: str) -> ProcessStatus:
        return await self._driver.status(self._handle, process_id)

    async def ended_unseen(self, process_id: str, user: str) -> ProcessStatus | None:
        status = await self.status(process_id, user)
        return None if status.is_running or status.exit_code is None else status

    async def kill(self, process_id: str) -> None:
        await self._driver.kill(self._handle, process_id)

    async def output(self, process_id: str, *, remove: bool) -> ProcessOutput:
        try:
            return await self._driver.output(self._handle, process_id)
        finally:
            if remove:
                await self._driver.forget(self._handle, process_id)

    async def tail(self, process_id: str, limit: int) -> str:
        await self._driver.trim_output(self._handle, process_id)
        return await self._driver.output_tail(self._handle, process_id, limit)

    def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        return self._driver.stream(self._handle, process)
