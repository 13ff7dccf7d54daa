"""Record the requests that the server receives, in memory and, if asked, as JSON lines.

This is a test tool: headers are recorded unredacted, API keys included. Use real credentials with it only on purpose.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow.testing.scripted_model.model_request import ModelRequest


@dataclass
class ReceivedCall:
    """One HTTP request."""

    index: int
    """Number of the request in its record, from 0."""

    time: float
    """Seconds since the epoch at its arrival."""

    method: str
    """HTTP method."""

    path: str
    """Path of the URL."""

    query: str
    """Query string."""

    headers: dict[str, str]
    """All headers, names in lower case."""

    body: Any
    """Parsed JSON; the text if it isn't JSON; None if it is empty."""

    dialect: str | None = None
    """API dialect; None for a request that calls no model (model lists, token counts, unknown paths)."""

    model: str | None = None
    """Name of the model; None for a request that calls none."""

    side: bool = False
    """Whether it is a side call, see `SideCalls`."""

    reply: str = ""
    """Label of its reply, see `Choice.label`; the HTTP status if it calls no model; empty before the choice."""

    request: ModelRequest | None = field(default=None, repr=False)
    """The parsed model call; None for a request that calls no model."""

    ended: bool = False
    """Whether the response is over."""

    client_left: bool = False
    """Whether the client closed the connection before the end of the response."""

    def as_json(self) -> str:
        """Return the request as a line of the record, without what happens after the choice of its reply."""
        names = ("index", "time", "method", "path", "query", "headers", "body", "dialect", "model", "side", "reply")
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)


class CallLog:
    """Record of the requests in the order of their arrival. Thread-safe."""

    def __init__(self, file: Path | None = None) -> None:
        """Start an empty record. file: receives a JSON line for each request; its directory is created."""
        self._calls: list[ReceivedCall] = []
        self._changed = threading.Condition()
        self._file = file
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)

    def arrive(self, method: str, path: str, query: str, headers: dict[str, str], body: Any) -> ReceivedCall:
        """Record a request whose body has arrived, and return it."""
        with self._changed:
            call = ReceivedCall(len(self._calls), time.time(), method, path, query, headers, body)
            self._calls.append(call)
            self._changed.notify_all()
            return call

    def record_choice(self, call: ReceivedCall, reply: str, request: ModelRequest | None = None) -> None:
        """Record the choice of a reply before it is sent, and write the request's line.

        Args:
            call: The HTTP request.
            reply: Label of the reply, or the status for a request that calls no model.
            request: The model call that was read from it; None if it calls no model.
        """
        with self._changed:
            call.reply = reply
            if request is not None:
                call.request, call.dialect, call.model, call.side = (
                    request,
                    request.dialect,
                    request.model,
                    request.side,
                )
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(call.as_json() + "\n")
            self._changed.notify_all()

    def end(self, call: ReceivedCall, *, client_left: bool) -> None:
        """Record the end of the response. client_left: the client closed the connection first."""
        with self._changed:
            call.ended, call.client_left = True, client_left
            self._changed.notify_all()

    def all(self) -> list[ReceivedCall]:
        """Return the requests so far."""
        with self._changed:
            return list(self._calls)

    def wait_until(self, condition: Callable[[list[ReceivedCall]], bool], timeout: float) -> None:
        """Block until a condition holds for the requests so far.

        Args:
            condition: Called with the requests after each change of the record.
            timeout: Seconds.

        Raises:
            TimeoutError: The condition did not hold in time; lists the requests.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(list(self._calls)), timeout):
                seen = ", ".join(f"{call.method} {call.path} ({call.reply})" for call in self._calls) or "nothing"
                raise TimeoutError(f"after {timeout} s the scripted model had received: {seen}")
