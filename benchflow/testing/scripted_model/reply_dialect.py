"""The base class of the modules that write replies in the format of an API, whole or as a stream of events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.llm_apis import DIALECTS
from benchflow.testing.scripted_model.agent_tools import ConcreteCall
from benchflow.testing.scripted_model.model_request import DialectName, ModelRequest
from benchflow.testing.scripted_model.model_script import HTTPError, Reply

PIECE = 20
"""Characters of a streamed piece of text, by default."""

SSE = "text/event-stream"
"""Content type of server-sent events."""


@dataclass(frozen=True)
class ConcreteReply:
    """A reply made concrete for one request."""

    id: str
    """Id of the response, unique in the server."""

    request: ModelRequest
    """The request."""

    reply: Reply
    """The reply of the script."""

    calls: tuple[ConcreteCall, ...]
    """The tool calls, under the agent's own names."""

    created: int
    """Seconds since the epoch."""

    @property
    def finish(self) -> str:
        """Return the reason why the model stops, in the words of scripts (see `Finish`)."""
        return self.reply.finish or ("tools" if self.calls else "stop")

    def pieces(self, text: str) -> list[str]:
        """Split a text into the pieces in which it is streamed."""
        if not text:
            return []
        count = self.reply.chunks
        size = max(1, -(-len(text) // count)) if count else PIECE
        return [text[start : start + size] for start in range(0, len(text), size)]


class ReplyDialect(ABC):
    """Writer of the replies of one LLM API.

    Attributes:
        api: The API.
        name: Its name in scripts and in the record.
    """

    api: Api
    name: DialectName

    def media_type(self, request: ModelRequest) -> str:
        """Return the content type of a streamed reply."""
        return SSE

    @abstractmethod
    def whole(self, concrete: ConcreteReply) -> Any:
        """Return the reply as JSON data, for a request without streaming."""

    @abstractmethod
    def events(self, concrete: ConcreteReply) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        return DIALECTS[self.api].error_body(error.status, error.message, error.type)


def event(data: Any, name: str | None = None) -> str:
    """Return one server-sent event. name: of its `event` line; None for none."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {compact(data)}\n\n"


def compact(data: Any) -> str:
    """Return data as JSON on one line."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def arguments_text(call: ConcreteCall) -> str:
    """Return a call's arguments as text, JSON unless they are text already."""
    return call.arguments if isinstance(call.arguments, str) else compact(call.arguments)
