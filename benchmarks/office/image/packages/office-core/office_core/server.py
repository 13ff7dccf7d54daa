"""The HTTP server: one thread, one loop, any number of connections.

All operations are short and all write (the log), so that one after another is as fast as it gets; nothing has to be
locked, and the order of the log is the order in which things happened.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable

from office_core.errors import Refused
from office_core.http import Incoming, Request, Response

MOST_CONNECTIONS = 512
IDLE_SECONDS = 75.0
GRACE_SECONDS = 2.0
"""How long a request that is half here may take when the service was asked to end, where nothing else is said."""


class Connection:
    """incoming: not yet answered; outgoing: not yet sent; ends: nothing more is read, it closes when all is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.incoming = Incoming()
        self.outgoing = bytearray()
        self.ends = False
        self.last_heard = time.monotonic()

    @property
    def is_busy(self) -> bool:
        return bool(self.incoming.buffer or self.outgoing)


class Server:
    """Listens from the moment it is made. Raises `OSError` when it can't. grace_seconds: see `GRACE_SECONDS`."""

    def __init__(
        self, host: str, port: int, answer: Callable[[Request], Response], grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._answer = answer
        self._grace_seconds = grace_seconds
        self._listener = socket.create_server((host, port), backlog=256)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._stop_by: float | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; requests that have come by then are answered."""
        waker, self._wake = socket.socketpair()
        for end in (waker, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        self._selector.register(waker, selectors.EVENT_READ, self._drain)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while self._stop_by is None or (any(c.is_busy for c in self._connections) and time.monotonic() < self._stop_by):
            for key, events in self._selector.select(0.1 if self._stop_by else IDLE_SECONDS):
                if isinstance(key.data, Connection):
                    self._serve(key.data, events)
                else:
                    key.data(key.fileobj)
            self._close_idle()
        for connection in list(self._connections):
            self._close(connection)

    # --- stopping -----------------------------------------------------------------------------------

    def _ask_to_stop(self, number: int, frame: object) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._grace_seconds
            self._selector.unregister(self._listener)
            self._listener.close()

    def _drain(self, waker: socket.socket) -> None:
        waker.recv(64)

    # --- connections --------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # it left again, or we are closing
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not self._read(connection):
                self._close(connection)
                return
            self._write(connection)
        except OSError:
            self._close(connection)

    def _read(self, connection: Connection) -> bool:
        """Take what came and answer what is whole; False when the other side has left."""
        try:
            data = connection.socket.recv(256 * 1024)
        except (BlockingIOError, InterruptedError):
            return True
        connection.last_heard = time.monotonic()
        connection.incoming.add(data)
        try:
            while not connection.ends and (request := connection.incoming.next_request()) is not None:
                keeps_alive = request.keeps_alive and self._stop_by is None
                self._respond(connection, request, keeps_alive)
            if not connection.ends and connection.incoming.wants_invitation():
                connection.outgoing += b"HTTP/1.1 100 Continue\r\n\r\n"
        except Refused as refusal:
            response = Response.of_json(refusal.as_json(), refusal.status)
            connection.outgoing += response.as_bytes(keeps_alive=False)
            connection.ends = True
        if not data:
            connection.ends = True
        return bool(data or connection.outgoing)

    def _respond(self, connection: Connection, request: Request, keeps_alive: bool) -> None:
        with_body = request.method != "HEAD"
        if not with_body:
            request.method = "GET"
        connection.outgoing += self._answer(request).as_bytes(keeps_alive=keeps_alive, with_body=with_body)
        connection.ends = not keeps_alive

    def _write(self, connection: Connection) -> None:
        if connection.outgoing:
            try:
                sent = connection.socket.send(connection.outgoing)
            except (BlockingIOError, InterruptedError):
                sent = 0
            del connection.outgoing[:sent]
        if connection.ends and not connection.outgoing:
            self._close(connection)
            return
        reads = 0 if connection.ends else selectors.EVENT_READ
        self._selector.modify(
            connection.socket,
            reads | (selectors.EVENT_WRITE if connection.outgoing else 0) or selectors.EVENT_READ,
            connection,
        )

    def _close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _close_idle(self) -> None:
        oldest = time.monotonic() - IDLE_SECONDS
        for connection in [c for c in self._connections if c.last_heard < oldest]:
            self._close(connection)
