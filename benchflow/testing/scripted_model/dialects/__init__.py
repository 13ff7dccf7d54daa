"""The wire formats: one module each reads a request and writes a reply, whole or as a stream of events.

What they share is here: the protocol that the server knows, and how a text is cut into pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow.testing.scripted_model.conversation import DialectName, ModelRequest
from benchflow.testing.scripted_model.script import HTTPError, Reply
from benchflow.testing.scripted_model.tools import ConcreteCall

PIECE = 20
SSE = "text/event-stream"


@dataclass(frozen=True)
class Speech:
    """A reply made concrete for one request: the tool calls carry the agent's own names. id: unique in the server."""

    id: str
    request: ModelRequest
    reply: Reply
    calls: tuple[ConcreteCall, ...]
    created: int

    @property
    def finish(self) -> str:
        """Why the model stopped, in the script's words."""
        return self.reply.finish or ("tools" if self.calls else "stop")

    def pieces(self, text: str) -> list[str]:
        """A text in the pieces in which it is streamed."""
        if not text:
            return []
        count = self.reply.chunks
        size = max(1, -(-len(text) // count)) if count else PIECE
        return [text[start : start + size] for start in range(0, len(text), size)]


class Dialect(Protocol):
    """One wire format."""

    name: DialectName

    def media_type(self, request: ModelRequest) -> str:
        """What a stream calls itself."""

    def read(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """What was asked. Raises KeyError, TypeError or ValueError for a body that is not of this dialect."""

    def whole(self, speech: Speech) -> Any:
        """The reply as one JSON document."""

    def events(self, speech: Speech) -> Iterator[str]:
        """The reply as a stream, event by event."""

    def error(self, error: HTTPError) -> dict[str, Any]:
        """The body of an error."""


def event(data: Any, name: str | None = None) -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {compact(data)}\n\n"


def compact(data: Any) -> str:
    """JSON on one line."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def arguments_text(call: ConcreteCall) -> str:
    """A call's arguments as the text that most dialects send."""
    return call.arguments if isinstance(call.arguments, str) else compact(call.arguments)
