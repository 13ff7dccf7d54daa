"""The requests to a model as conditions and Python scripts see them, independent of their API dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from benchflow.llm_apis.conversation import Message, OfferedTool, ToolResult

DialectName = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""Name of an API dialect."""


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
