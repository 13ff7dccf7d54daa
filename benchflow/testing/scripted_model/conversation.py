"""What a model was asked, whatever dialect it was asked in.

Each dialect reads its own wire format into a `ModelRequest`; matchers and Python scripts see nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

DialectName = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]


@dataclass(frozen=True)
class OfferedTool:
    """A tool that the request lets the model call.

    kind: `function` takes a JSON object of the given schema, `custom` takes free text.
    """

    name: str
    kind: Literal["function", "custom"] = "function"
    schema: Mapping[str, Any] = field(default_factory=dict)
    namespace: str | None = None

    def property_type(self, name: str) -> str | None:
        """The JSON type of a parameter: `any` where the schema says none, None where there is no such parameter."""
        properties = self.schema.get("properties") or {}
        if name not in properties:
            return None
        declared = properties[name].get("type", "any") if isinstance(properties[name], dict) else "any"
        return declared.lower() if isinstance(declared, str) else "any"


@dataclass(frozen=True)
class ToolResult:
    """What a tool gave back, as text."""

    call_id: str
    text: str
    name: str = ""


@dataclass(frozen=True)
class Message:
    """A piece of the conversation. `tools` are the names that an assistant called in it."""

    role: Literal["user", "assistant"]
    text: str = ""
    results: tuple[ToolResult, ...] = ()
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelRequest:
    """One call of the model.

    number counts the calls that are not side calls, from 1, and is 0 for a side call. headers are lower case and
    complete: a test may want to see which key was sent.
    """

    dialect: DialectName
    model: str
    stream: bool
    system: str
    messages: tuple[Message, ...]
    tools: tuple[OfferedTool, ...]
    body: Mapping[str, Any]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    side: bool = False

    @property
    def turn(self) -> int:
        """How often the model has spoken in this conversation so far: uninterrupted runs of assistant messages."""
        roles = ["user", *(message.role for message in self.messages)]
        return sum(before == "user" and now == "assistant" for before, now in pairwise(roles))

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """What came after the model spoke last."""
        last = max((i for i, message in enumerate(self.messages) if message.role == "assistant"), default=-1)
        return self.messages[last + 1 :]

    @property
    def user_text(self) -> str:
        """What the user said after the model spoke last."""
        return "\n".join(message.text for message in self.new_messages if message.text)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of the tools that the model called last."""
        return tuple(result for message in self.new_messages for result in message.results)

    @property
    def text(self) -> str:
        """All text of the conversation, the system prompt and tool results included."""
        parts = [self.system]
        for message in self.messages:
            parts += [message.text, *(result.text for result in message.results)]
        return "\n".join(part for part in parts if part)

    def tool(self, name: str) -> OfferedTool | None:
        """The offered tool of that name."""
        return next((tool for tool in self.tools if tool.name == name), None)


def plain_text(content: Any) -> str:
    """The text in what the dialects call content: a string, or blocks of which some have a `text`."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        inner = content.get("text")
        return inner if isinstance(inner, str) else plain_text(content.get("content"))
    if isinstance(content, list):
        return "\n".join(text for text in map(plain_text, content) if text)
    return ""
