"""A uvicorn server that stops without delay, because tests start and stop hundreds of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn

_CLOCK_SEC = 1.0
"""Interval at which the `Date` header is set."""

_POLL_INTERVAL_SEC = 0.005
"""Poll interval, in seconds, of open connections at the end."""


class StoppingServer(uvicorn.Server):
    """A server that waits for an event to stop.

    uvicorn's own loop polls for its end ten times a second, and gives connections another tenth of a second to close.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        """Make it of uvicorn's configuration."""
        super().__init__(config)
        self._over = asyncio.Event()

    def stop(self) -> None:
        """Stop the server. Must be called in its own thread."""
        self.should_exit = True
        self._over.set()

    async def main_loop(self) -> None:
        """Run uvicorn's tick once a second until `stop` is called."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _CLOCK_SEC)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, wait for open responses, and cancel those that don't end within the graceful timeout."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(_POLL_INTERVAL_SEC)
        for task in self.server_state.tasks:
            task.cancel()
