"""What the server received, kept in memory and, if asked, as JSON lines.

This is a test tool: headers are kept as they came, keys included. Point it at real credentials only on purpose.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow.testing.scripted_model.conversation import ModelRequest


@dataclass
class Call:
    """One HTTP request.

    body: parsed JSON, or the text that was not JSON. dialect: None for a request that asks no model (model lists,
    token counts, unknown paths). reply: which reply it got, see `Choice.label`; for other requests the status.
    time: seconds since the epoch on arrival. ended: nothing more will be sent. client_left: the client closed first.
    """

    index: int
    time: float
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any
    dialect: str | None = None
    model: str | None = None
    side: bool = False
    reply: str = ""
    request: ModelRequest | None = field(default=None, repr=False)
    ended: bool = False
    client_left: bool = False

    def as_json(self) -> str:
        """One line of the record."""
        names = ("index", "time", "method", "path", "query", "headers", "body", "dialect", "model", "side", "reply")
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)


class CallLog:
    """The calls in the order of their arrival."""

    def __init__(self, file: Path | None = None) -> None:
        self._calls: list[Call] = []
        self._changed = threading.Condition()
        self._file = file
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)

    def arrive(self, method: str, path: str, query: str, headers: dict[str, str], body: Any) -> Call:
        """Notes a request as soon as its body is there."""
        with self._changed:
            call = Call(len(self._calls), time.time(), method, path, query, headers, body)
            self._calls.append(call)
            self._changed.notify_all()
            return call

    def decided(self, call: Call, reply: str, request: ModelRequest | None = None) -> None:
        """Notes what the request will get, before it gets it, and writes its line."""
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

    def end(self, call: Call, *, client_left: bool) -> None:
        """Notes that nothing more will be sent."""
        with self._changed:
            call.ended, call.client_left = True, client_left
            self._changed.notify_all()

    def all(self) -> list[Call]:
        """The calls so far."""
        with self._changed:
            return list(self._calls)

    def wait_until(self, condition: Callable[[list[Call]], bool], timeout: float) -> None:
        """Blocks until the condition holds for the calls. Raises `TimeoutError` listing what has arrived."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(list(self._calls)), timeout):
                seen = ", ".join(f"{call.method} {call.path} ({call.reply})" for call in self._calls) or "nothing"
                raise TimeoutError(f"after {timeout} s the scripted model had received: {seen}")
