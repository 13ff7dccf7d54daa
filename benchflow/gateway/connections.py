"""The server of agents' calls: how many connections it has, of whom, and how long each may take for a request's head.

Anybody in a sandbox can open the gateway's socket. Each connection costs a file descriptor here, and one more at the
endpoint, of which a process has a limited number: without bounds one agent could take them all.
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
"""Connections of all peers, where the process may open as many files as it needs for them."""

MAX_PEER_CONNECTIONS = 512
"""Connections of one sandbox, or of one service or login of the host."""

HEAD_SEC = 30.0
"""The longest from a connection's opening, or from a head's first byte, to the end of that head."""

MAX_HEAD_BYTES = 256 * 1024
"""Bytes of a head, all of its lines together."""

HEAD_LINE_LIMIT = 64 * 1024
"""Bytes of a line of a head. Codex sends some kilobytes of metadata in one."""

_RESERVED_FILES = 128
"""Files of the process itself: records, logs, control connections."""

_FILES_OF_CALL = 2
"""The agent's connection and the endpoint's."""

_CREDENTIALS = struct.Struct("3i")
_LOG_INTERVAL_SEC = 60.0

log = structlog.get_logger("benchflow.gateway")


def connection_limits(files: int) -> tuple[int, int]:
    """Return how many connections all peers, and one of them, may have, for a process that may open `files`."""
    total = max(8, min(MAX_CONNECTIONS, (files - _RESERVED_FILES) // _FILES_OF_CALL))
    return total, min(MAX_PEER_CONNECTIONS, max(4, total // 4))


class Tally:
    """Counts what happens to requests of nobody, and logs the numbers at most once a minute.

    A line for each would let anybody who can connect fill the disk.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
    """Lets one record of a library's logger through in a minute, and counts the others in `tally`.

    aiohttp logs a traceback for each request that it can't parse, asyncio one for each write to a closed connection.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
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
    """An HTTP server with a bound of connections, in all and for each peer.

    At a bound, the connection gives way that has waited longest for a request: the peer's own, or, if the server has
    all that it may have, one of the peer that has the most. Where all are busy, the new one is closed.
    """

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], files: int, tally: Tally
    ) -> None:
        # A call whose agent has left is nobody's.
        super().__init__(handler, handler_cancellation=True)
        self._max_total, self._max_of_peer = connection_limits(files)
        self._tally = tally
        # A dictionary has an order: who has waited longest comes first.
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
        """Take a connection in, closing another one where there must be one less; False when it has to go itself."""
        own = self._peers.get(peer, {})
        crowd = None
        # Peers that cannot be told apart share no bound but the total.
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
        """Forget a connection that is closed, if it was taken in."""
        own = self._peers.get(peer, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._peers[peer]

    def note_use(self, connection: CallConnection, peer: str | None) -> None:
        """Move a connection behind those that have waited longer."""
        own = self._peers.get(peer, {})
        if connection in own:
            del own[connection]
            own[connection] = None

    def note_slow(self) -> None:
        """Count a connection that took too long for a head, or whose head is too large."""
        self._tally.add("heads_too_slow_or_too_large")


class CallConnection(web.RequestHandler):
    """A connection, which is closed when the head of its next request takes too long or is too large."""

    def __init__(self, server: CallServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._peer: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """Tell whether every request that came whole was answered."""
        # `_waiter` is there while aiohttp waits for a head, and not while it reads what is left of a body.
        return not self._messages and (self._request_count == 0 or self._waiter is not None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or close it."""
        self._peer = peer_of(transport.get_extra_info("socket"))
        if not self._server.admit(self, self._peer):
            # As if it had been refused: nothing of aiohttp's has begun to work for it.
            self._force_close = True
            _abort(transport)
            return
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Give what came to the parser, for as long as a head neither takes too long nor is too large."""
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
        """Forget the connection."""
        self._stop_timer()
        self._server.remove(self, self._peer)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, and count it no longer."""
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
        self._stop_timer()
        self._server.note_slow()
        self.abort()


def peer_of(sock: Any) -> str | None:
    """Return what tells a connection's peer from others; None where nothing does.

    It is the cgroup of the process that connected: each sandbox has its own, and no process in a sandbox can leave it.
    (The process itself would be no peer: a sandbox can start any number of them.)
    """
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(found)
        # 0 is a process that this one's pid namespace does not have: a sandbox of an engine outside of it.
        return Path(f"/proc/{pid}/cgroup").read_text() if pid else None
    except (OSError, AttributeError):
        return None


def _abort(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
