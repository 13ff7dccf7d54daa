"""The byte stream of an attached exec, read on the event loop.

The daemon multiplexes stdout and stderr into frames: one byte of stream number, three unused, four of length. A plain
socket is read by the event loop, since a thread per running command would limit how many can run. Only an encrypted
one, which the loop cannot read, takes a thread while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

STDOUT = 1
CHUNK = 256 * 1024
"""Maximum number of bytes that are received at a time."""

HEADER = 8
"""Bytes of a frame's header."""


class ExecStream:
    """A connection to a started exec."""

    def __init__(self, raw: Any, on_sign: Callable[[], object] = lambda: None) -> None:
        """Make it.

        Args:
            raw: Socket that the library returns for `socket=True`.
            on_sign: Callback on the event loop, called whenever data or EOF comes.
        """
        self._on_sign = on_sign
        self._response = raw._response
        self._sock: socket.socket = getattr(raw, "_sock", raw)
        self._plain = type(self._sock) is socket.socket
        self._buffer = bytearray()
        self._kind = STDOUT
        self._left = 0
        self._closed = False
        if self._plain:
            self._sock.setblocking(False)
            # Data that came in one packet with the response's headers is in the library's buffer, not in the socket.
            self._buffer += self._response.raw._fp.fp.peek()
        else:
            self._sock.settimeout(None)
            self._reader = self._response.raw._fp.fp

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece as (stream number, bytes); None at the end."""
        while True:
            if self._left and self._buffer:
                piece = bytes(self._buffer[: self._left])
                del self._buffer[: self._left]
                self._left -= len(piece)
                return self._kind, piece
            if not self._left and len(self._buffer) >= HEADER:
                self._kind, self._left = struct.unpack(">BxxxL", self._buffer[:HEADER])
                del self._buffer[:HEADER]
                continue
            data = await self._receive()
            self._on_sign()
            if not data:
                return None
            self._buffer += data

    async def read_all(self, limit: int) -> bytes:
        """Read to the end and return both streams as one, of which bytes beyond `limit` are dropped."""
        output = bytearray()
        while (piece := await self.read()) is not None:
            if len(output) < limit:
                output += piece[1]
        return bytes(output[:limit])

    async def send(self, data: bytes) -> None:
        """Write to the command's stdin."""
        if self._plain:
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
        else:
            await asyncio.to_thread(self._sock.sendall, data)

    def close(self) -> None:
        """Close the connection. The command runs on, but its stdin ends."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self._response.close()
        with contextlib.suppress(OSError):
            self._sock.close()

    async def _receive(self) -> bytes:
        """Return the next received bytes; none at the end, and after an error of the connection."""
        try:
            if self._plain:
                return await asyncio.get_running_loop().sock_recv(self._sock, CHUNK)
            received: bytes = await asyncio.to_thread(self._reader.read1, CHUNK)
            return received
        except OSError:
            return b""
