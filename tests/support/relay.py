"""A relay between a client and a server that can be cut, so that nobody is told, or closed, so that all are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Relay:
    """Forwards connections to a server. Cut, it keeps them open and holds back every byte, as a broken network does."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._is_open = True
        self._clients: set[asyncio.StreamWriter] = set()
        self.port = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, address: str) -> AsyncIterator[Relay]:
        """Relay to `host:port`, or to the socket at a path, from a TCP port for the time of the block."""
        relay = cls(address)
        async with await asyncio.start_server(relay._serve, "127.0.0.1", 0) as server:
            relay.port = server.sockets[0].getsockname()[1]
            yield relay
            server.close()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    def close(self) -> None:
        """Break all connections off, and each new one at once, as the port of a server that is gone does."""
        self._is_open = False
        for client in self._clients:
            client.transport.abort()

    def reopen(self) -> None:
        self._is_open = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            return writer.transport.abort()
        self._clients.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            theirs, ours = await self._connect()
            await asyncio.gather(self._forward(reader, ours), self._forward(theirs, writer))
        self._clients.discard(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._address.startswith("/"):
            return await asyncio.open_unix_connection(self._address)
        host, _, port = self._address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                await self._is_whole.wait()
                writer.write(piece)
                await writer.drain()
