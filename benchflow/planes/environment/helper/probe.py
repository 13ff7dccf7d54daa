"""Polls the services of a sandbox, all at once, until they are healthy. Run inside the sandbox."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from benchflow.planes.environment.helper.shared import run

TRY = 5.0
LAST_WORDS = 0.2
SHOWN = 200
READ = 4096
UNTRIED = "was not tried"
SILENT = "timed out"


class Probe(threading.Thread):
    """Thread that polls one target until it is healthy; `answer` is the last answer.

    A timeout of an attempt that the deadline has cut short does not replace an earlier answer.
    """

    def __init__(self, target: str, every: float, began: float, deadline: float) -> None:
        """Make it: a URL or `tcp://HOST:PORT`, the interval, and times of the monotonic clock, all in seconds."""
        super().__init__(daemon=True)
        self.target, self.every, self.began, self.deadline = target, every, began, deadline
        self.healthy = False
        self.answer = UNTRIED
        self.seconds: float | None = None

    def run(self) -> None:
        """Poll until the target is healthy, or the deadline has passed."""
        while not self.healthy and time.monotonic() < self.deadline:
            patience = min(TRY, max(0.05, self.deadline - time.monotonic()))
            try:
                self.healthy, self.answer = self.ask(patience)
            except Exception as error:
                answer = describe_error(error)
                if patience == TRY or answer != SILENT or self.answer == UNTRIED:
                    self.answer = answer
            if self.healthy:
                self.seconds = time.monotonic() - self.began
            else:
                time.sleep(self.every)

    def ask(self, patience: float) -> tuple[bool, str]:
        """Make one attempt with a timeout; return whether the target is healthy, and its answer."""
        url = urlsplit(self.target)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        with open_socket(url.hostname or "", port, patience) as link:
            if url.scheme == "tcp":
                return True, "connected"
            if url.scheme == "https":
                # A world's certificate may be self-signed; only its response counts.
                context = ssl._create_unverified_context()
                with context.wrap_socket(link, server_hostname=url.hostname) as secure:
                    return send_get(secure, url.netloc, url.path or "/", url.query)
            return send_get(link, url.netloc, url.path or "/", url.query)


def open_socket(host: str, port: int, timeout: float) -> socket.socket:
    """Connect to a host, of which `localhost` has two addresses: a service may listen on one of them only."""
    hosts = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    refused: Exception | None = None
    for name in hosts:
        try:
            return socket.create_connection((name, port), timeout)
        except OSError as error:
            # Report the first address's error: the second fails also where the sandbox has no IPv6.
            refused = refused or error
    assert refused
    raise refused


def send_get(link: Any, host: str, path: str, query: str) -> tuple[bool, str]:
    """Send a GET over a connected socket; return whether the status is healthy, and a phrase with it.

    The phrase of an unhealthy status quotes the beginning of the body.
    """
    place = path + ("?" + query if query else "")
    link.sendall(f"GET {place} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode())
    said = b""
    while len(said) < READ and not is_healthy(parse_status(said)):
        try:
            piece = link.recv(READ)
        except socket.timeout:  # noqa: UP041
            if not parse_status(said):
                raise
            break
        if not piece:
            break
        said += piece
        if parse_status(said):
            # Wait a moment longer for the body, which may tell the reason; not every server closes the connection.
            link.settimeout(LAST_WORDS)
    status = parse_status(said)
    if not status:
        return False, "no HTTP answer: " + said[:SHOWN].decode(
            "utf-8", "replace"
        ) if said else "closed without an answer"
    if is_healthy(status):
        return True, f"HTTP {status}"
    head, _, body = said.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n")[0]
    shown = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())[:SHOWN]
    return False, f"HTTP {status}" + (f": {shown}" if shown else "")


def parse_status(said: bytes) -> int:
    """Return the HTTP status in a partial response; 0 if there is none yet, or if it is no HTTP."""
    words = said.partition(b"\r\n")
    line = words[0].split() if words[1] else []
    return int(line[1]) if len(line) > 1 and line[0].startswith(b"HTTP/") and line[1].isdigit() else 0


def is_healthy(status: int) -> bool:
    """Return whether a status counts as healthy: 200 to 399."""
    return 200 <= status < 400


def describe_error(error: Exception) -> str:
    """Return an error of an attempt as an answer."""
    if isinstance(error, (socket.timeout, TimeoutError)):
        return SILENT
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    return str(getattr(error, "strerror", None) or error).lower()


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Poll all targets until each is healthy, a file of `exits` exists, or the deadline has passed."""
    began = time.monotonic()
    deadline = began + request["deadline"]
    targets = [*request["http"], *(f"tcp://localhost:{port}" for port in request["tcp"])]
    probes = [Probe(target, request["every"], began, deadline) for target in targets]
    for each in probes:
        each.start()
    ended: list[str] = []
    while not ended and time.monotonic() < deadline and not all(each.healthy for each in probes):
        ended = [path for path in request["exits"] if os.path.exists(path)]
        time.sleep(min(request["every"], 0.01))
    for each in probes if not ended else ():
        # An attempt that the deadline has cut short needs a moment to store its answer.
        each.join(LAST_WORDS)
    ended = ended or [path for path in request["exits"] if os.path.exists(path)]
    told_all = [
        {"target": each.target, "healthy": each.healthy, "answer": each.answer, "seconds": each.seconds}
        for each in probes
    ]
    return {"answers": told_all, "ended": ended}


if __name__ == "__main__":
    run(probe)
