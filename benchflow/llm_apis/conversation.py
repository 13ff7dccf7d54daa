"""The parts of a request's conversation, independent of its API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class OfferedTool:
    """A tool that a request offers to the model."""

    name: str
    """Name of the tool."""

    kind: Literal["function", "custom"] = "function"
    """`function` takes a JSON object of the schema, `custom` takes free text."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments."""

    namespace: str | None = None
    """Namespace of the tool, in the Responses API; None if it has none."""

    def property_type(self, name: str) -> str | None:
        """Return the JSON type of a parameter: `any` if the schema has none, None if there is no such parameter."""
        properties = self.schema.get("properties") or {}
        if name not in properties:
            return None
        declared = properties[name].get("type", "any") if isinstance(properties[name], dict) else "any"
        return declared.lower() if isinstance(declared, str) else "any"


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call, as text."""

    call_id: str
    """Id of the call; empty in dialects that don't send it."""

    text: str
    """Text of the result."""

    name: str = ""
    """Name of the tool; empty in dialects that don't send it."""


@dataclass(frozen=True)
class Message:
    """A message of the conversation."""

    role: Literal["user", "assistant"]
    """Author of the message."""

    texts: tuple[str, ...] = ()
    """Texts of its parts."""

    results: tuple[ToolResult, ...] = ()
    """Tool results that a user message carries."""

    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments of the tool calls of an assistant message. Arguments are an object or JSON text; None for a
    tool that the endpoint runs itself.
    """

    @property
    def text(self) -> str:
        """Return the text of the message."""
        return "\n".join(self.texts)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the names of the tools that an assistant message calls."""
        return tuple(name for name, _ in self.calls)


def iter_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, in any dialect: a string, or blocks of which some have a `text`."""
    if isinstance(content, str):
        if content:
            yield content
    elif isinstance(content, dict):
        text = content.get("text")
        yield from iter_texts(text if isinstance(text, str) else content.get("content"))
    elif isinstance(content, list):
        for part in content:
            yield from iter_texts(part)


def join_texts(content: Any) -> str:
    """Return the texts of a message's content, joined by line breaks."""
    return "\n".join(iter_texts(content))
