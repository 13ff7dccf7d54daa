"""The requests to a model, independent of their API dialect.

Each dialect parses its own wire format into a `ModelRequest`, which is all that conditions and Python scripts see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

DialectName = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""Name of an API dialect."""


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

    text: str = ""
    """Text of the message."""

    results: tuple[ToolResult, ...] = ()
    """Tool results that a user message carries."""

    tools: tuple[str, ...] = ()
    """Names of the tools that an assistant message calls."""


@dataclass(frozen=True)
class ModelRequest:
    """One call of the model."""

    dialect: DialectName
    """API dialect of the request."""

    model: str
    """Name of the model."""

    stream: bool
    """Whether the reply is to be streamed."""

    system: str
    """System prompt; empty without one."""

    messages: tuple[Message, ...]
    """The conversation, without system messages."""

    tools: tuple[OfferedTool, ...]
    """Tools that the request offers."""

    body: Mapping[str, Any]
    """Body as it was received."""

    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameters."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """All headers, names in lower case, API keys included: a test may check which key was sent."""

    number: int = 0
    """Number of the call, from 1, side calls not counted; 0 for a side call."""

    side: bool = False
    """Whether it is a side call, see `SideCalls`."""

    @property
    def turn(self) -> int:
        """Return the number of turns that the model has had: uninterrupted runs of assistant messages."""
        roles = ["user", *(message.role for message in self.messages)]
        return sum(before == "user" and now == "assistant" for before, now in pairwise(roles))

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """Return the messages after the model's last one."""
        last = max((i for i, message in enumerate(self.messages) if message.role == "assistant"), default=-1)
        return self.messages[last + 1 :]

    @property
    def user_text(self) -> str:
        """Return the text of the user messages after the model's last one."""
        return "\n".join(message.text for message in self.new_messages if message.text)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Return the tool results after the model's last message."""
        return tuple(result for message in self.new_messages for result in message.results)

    @property
    def text(self) -> str:
        """Return all text of the conversation, the system prompt and tool results included."""
        parts = [self.system]
        for message in self.messages:
            parts += [message.text, *(result.text for result in message.results)]
        return "\n".join(part for part in parts if part)

    def tool(self, name: str) -> OfferedTool | None:
        """Return the offered tool of a name; None if there is none."""
        return next((tool for tool in self.tools if tool.name == name), None)


def plain_text(content: Any) -> str:
    """Return the text of a message's content, in any dialect: a string, or blocks of which some have a `text`."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        inner = content.get("text")
        return inner if isinstance(inner, str) else plain_text(content.get("content"))
    if isinstance(content, list):
        return "\n".join(text for text in map(plain_text, content) if text)
    return ""
