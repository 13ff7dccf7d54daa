"""uvicorn's server, but one that is over as soon as it is told so: tests start and stop hundreds of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn

_CLOCK_SEC = 1.0
"""How often the `Date` header is set."""

_LOOK_EVERY = 0.005


class StoppingServer(uvicorn.Server):
    """Its own loop looks ten times a second whether it is to end, and gives every connection a tenth to close."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._over = asyncio.Event()

    def stop(self) -> None:
        """End, from the server's own thread."""
        self.should_exit = True
        self._over.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _CLOCK_SEC)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, let answers go out that are under way, and cancel those that do not end in time."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(_LOOK_EVERY)
        for task in self.server_state.tasks:
            task.cancel()
