"""The server of agents' calls: limits of connections, in total and for each peer, and of the time for a request's head.

Any process in a sandbox can connect to the gateway's socket. Each connection costs a file descriptor, and one more for
the endpoint, of which a process has a limited number: without limits one agent could take them all.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

MAX_CONNECTIONS = 8192
"""Maximum of connections of all peers, if the process may open as many files as they need."""

MAX_PEER_CONNECTIONS = 512
"""Maximum of connections of one sandbox, or of one service or login of the host."""

HEAD_SEC = 30.0
"""Seconds from a connection's opening, or from a head's first byte, within which that head must be complete."""

MAX_HEAD_BYTES = 256 * 1024
"""Maximum of bytes of a head, of all its lines together."""

HEAD_LINE_LIMIT = 64 * 1024
"""Maximum of bytes of a line of a head. Codex sends some kilobytes of metadata in one."""

_RESERVED_FILES = 128
"""Files that the process itself needs: records, logs, control connections."""

_FILES_OF_CALL = 2
"""File descriptors of a call: the agent's connection and the endpoint's."""

_CREDENTIALS = struct.Struct("3i")
_LOG_INTERVAL_SEC = 60.0

log = structlog.get_logger("benchflow.gateway")


def connection_limits(files: int) -> tuple[int, int]:
    """Return the maximum of connections, of all peers and of one, for a process that may open `files` files."""
    total = max(8, min(MAX_CONNECTIONS, (files - _RESERVED_FILES) // _FILES_OF_CALL))
    return total, min(MAX_PEER_CONNECTIONS, max(4, total // 4))


class Tally:
    """Counts events of refused requests and closed connections, and logs the counts at most once a minute.

    With a log line for each event, any process that can connect could fill the disk.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Make it. `clock` returns monotonic seconds."""
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._next = 0.0

    def add(self, event: str) -> None:
        """Count an event."""
        self._counts[event] = self._counts.get(event, 0) + 1
        if self._clock() >= self._next:
            self._next = self._clock() + _LOG_INTERVAL_SEC
            counts, self._counts = self._counts, {}
            log.warning("requests were refused, or connections closed", **counts)


class OncePerMinute(logging.Filter):
    """Passes one record of a library's logger per minute, and counts the others in a `Tally`.

    aiohttp logs a traceback for each request that it can't parse, asyncio one for each write to a closed connection.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        """Make it. `clock` returns monotonic seconds."""
        super().__init__()
        self._tally = tally
        self._clock = clock
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        if self._clock() < self._next:
            self._tally.add("unlogged_errors")
            return False
        self._next = self._clock() + _LOG_INTERVAL_SEC
        return True


class CallServer(web.Server):
    """An HTTP server with a maximum of connections, in total and for each peer.

    At a limit, the connection that has waited longest for a request is closed: one of the same peer, or, if the total
    is reached, one of the peer that has the most. If all of them are busy, the new one is closed.
    """

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], files: int, tally: Tally
    ) -> None:
        """Make it.

        Args:
            handler: Handles a request.
            files: Number of files that the process may open.
            tally: Counts connections that are closed.
        """
        # Cancels the handler when the agent disconnects.
        super().__init__(handler, handler_cancellation=True)
        self._max_total, self._max_of_peer = connection_limits(files)
        self._tally = tally
        # A dictionary is ordered: the connection that has waited longest comes first.
        self._peers: dict[str | None, dict[CallConnection, None]] = {}
        self._count = 0

    def __call__(self) -> CallConnection:
        """Return the protocol of a new connection."""
        return CallConnection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
            max_line_size=HEAD_LINE_LIMIT,
            max_field_size=HEAD_LINE_LIMIT,
            keepalive_timeout=3600.0,
        )

    def admit(self, connection: CallConnection, peer: str | None) -> bool:
        """Add a connection, closing another one at a limit. Return False if the new one must be closed itself."""
        own = self._peers.get(peer, {})
        crowd = None
        # Unidentified peers have no limit but the total.
        if peer is not None and len(own) >= self._max_of_peer:
            crowd = own
        elif self._count >= self._max_total:
            crowd = max(self._peers.values(), key=len)
        if crowd is not None:
            self._tally.add("connections_beyond_the_bound")
            idle = next((one for one in crowd if one.is_waiting), None)
            if idle is None:
                return False
            idle.abort()
        self._peers.setdefault(peer, {})[connection] = None
        self._count += 1
        return True

    def remove(self, connection: CallConnection, peer: str | None) -> None:
        """Remove a closed connection, if it was added."""
        own = self._peers.get(peer, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._peers[peer]

    def note_use(self, connection: CallConnection, peer: str | None) -> None:
        """Move a connection behind those that have waited longer for a request."""
        own = self._peers.get(peer, {})
        if connection in own:
            del own[connection]
            own[connection] = None

    def note_slow(self) -> None:
        """Count a connection whose head took too long or is too large."""
        self._tally.add("heads_too_slow_or_too_large")


class CallConnection(web.RequestHandler):
    """A connection, which is closed when the head of its next request takes too long or is too large."""

    def __init__(self, server: CallServer, **options: Any) -> None:
        """Make it. `options` are those of aiohttp's `RequestHandler`."""
        super().__init__(server, **options)
        self._server = server
        self._peer: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """Return whether every complete request was answered."""
        # aiohttp has a `_waiter` while it waits for a head, but not while it reads the rest of a body.
        return not self._messages and (self._request_count == 0 or self._waiter is not None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the server, or close it."""
        self._peer = peer_of(transport.get_extra_info("socket"))
        if not self._server.admit(self, self._peer):
            # As if it had been refused: aiohttp has started nothing for it.
            self._force_close = True
            _abort(transport)
            return
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser, and close the connection if a head takes too long or is too large."""
        was_waiting = self.is_waiting
        super().data_received(data)
        if not was_waiting or self._force_close:
            return
        if not self.is_waiting:
            self._stop_timer()
            self._server.note_use(self, self._peer)
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._give_up()
        elif self._head_timer is None:
            self._start_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from the server."""
        self._stop_timer()
        self._server.remove(self, self._peer)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, and remove it from the server."""
        self._server.remove(self, self._peer)
        self._force_close = True
        if self.transport is not None:
            _abort(self.transport)

    def _start_timer(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_SEC, self._give_up)

    def _stop_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """Count the connection as too slow or too large, and close it."""
        self._stop_timer()
        self._server.note_slow()
        self.abort()


def peer_of(sock: Any) -> str | None:
    """Return a text that identifies the peer of a connection; None if it cannot be identified.

    It is the cgroup of the process that connected: each sandbox has its own, which no process in it can leave. The
    process itself would be no identity: a sandbox can start any number of them.
    """
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(found)
        # The pid is 0 if this pid namespace lacks the process: a sandbox of a container engine outside of it.
        return Path(f"/proc/{pid}/cgroup").read_text() if pid else None
    except (OSError, AttributeError):
        return None


def _abort(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
