"""The base class of dialects, and the parsed request and response of a call."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.llm_apis.conversation import Message, OfferedTool, join_texts
from benchflow.llm_apis.json_values import Document, tables, word

_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request."""

    model: str | None = None
    """Requested model; None if the request names none."""

    stream: bool = False
    """Whether the response is to be streamed."""

    has_tools: bool = False
    """Whether the request offers any tools."""

    system: str = ""
    """Text of the system prompt, including system messages of the conversation."""

    user: str = ""
    """Text of the last user message."""


@dataclass(frozen=True)
class ParsedResponse:
    """A parsed response, as far as it has come. A field is None if the response does not report it."""

    usage: CallUsage | None = None
    """Reported tokens."""

    finish: str | None = None
    """Finish reason as the endpoint spells it, or `error` for a response that holds an error; None before the end."""

    token_ids: list[Any] | None = None
    """Ids of the output tokens."""

    logprobs: Any = None
    """Log probabilities of the output tokens, in the endpoint's format."""

    model: str | None = None
    """Model that has answered, as the endpoint reports it."""


class Dialect(ABC):
    """The format of one LLM API. Reading is tolerant: parts of a wrong type count as missing.

    Attributes:
        api: Name of the format.
        path: Path of a generation call, with `{model}` in place of a model's name.
        path_end: Pattern of the ends of such paths. Clients differ in their base URLs, so that anything may precede.
        conversation: Key of the conversation in a request.
        error_types: Type of an error by its HTTP status.
        unsupported: Sampling parameters that it does not have.
        forbidden: Keys of a request that, if true, make the endpoint answer later at another path, where the gateway
            could not count the tokens.
        refused: HTTP status of a refusal that its clients do not retry.
    """

    api: Api
    path: str
    path_end: re.Pattern[str]
    conversation: str
    error_types: Mapping[int, str]
    unsupported: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    refused = 402

    # --- requests

    def parse_request(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request body. `path` is the request's path without its query."""
        model, stream = self.parse_target(path, body)
        items = self.items(body)
        system = [join_texts(self.instructions(body))]
        system += [join_texts(item.get("content")) for item in items if item.get("role") in _SYSTEM_ROLES]
        last = next((item for item in reversed(items) if item.get("role") == "user"), None)
        return ParsedRequest(
            model=model,
            stream=stream,
            has_tools=bool(self.tool_entries(body)),
            system="\n".join(text for text in system if text),
            user=self.parse_message(last).text if last is not None else "",
        )

    def parse_target(self, path: str, body: Document) -> tuple[str | None, bool]:
        """Return the requested model (None if the request names none), and whether the response is to be streamed."""
        return word(body.get("model")), bool(body.get("stream"))

    def instructions(self, body: Document) -> Any:
        """Return the content of the system prompt outside of the conversation; None if there is none."""
        return None

    def items(self, body: Document) -> Sequence[Document]:
        """Return the items of a request's conversation."""
        return tables(body.get(self.conversation))

    def messages(self, body: Document) -> Iterator[Message]:
        """Yield the messages of a request's conversation, without system messages."""
        for item in self.items(body):
            if item.get("role") not in _SYSTEM_ROLES:
                yield self.parse_message(item)

    @abstractmethod
    def parse_message(self, item: Document) -> Message:
        """Parse an item of a conversation."""

    def tool_entries(self, body: Document) -> list[Any]:
        """Return the entries of a request's list of tools, valid or not."""
        found = body.get("tools") or []
        return found if isinstance(found, list) else [found]

    def tools(self, body: Document) -> Iterator[OfferedTool]:
        """Yield the tools that a request offers."""
        for entry in tables(self.tool_entries(body)):
            yield from self.parse_tools(entry)

    @abstractmethod
    def parse_tools(self, entry: Document) -> Iterator[OfferedTool]:
        """Yield the tools of an entry in a request's list of tools."""

    # --- changes of requests

    @abstractmethod
    def apply_sampling(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set sampling parameters in a request body, and return the values that changed, by place.

        Args:
            body: The body, which is changed.
            sampling: The parameters; `max_tokens` only lowers the agent's own value.
            base_url: Address of the endpoint, by which names of parameters may differ.
        """

    def request_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make a request ask for usage if its response would lack it; return the values that changed, by place."""
        return {}

    # --- responses

    @abstractmethod
    def parse_response(self, documents: Iterable[Document]) -> ParsedResponse:
        """Parse a response: its events in their order, or its single document."""

    @abstractmethod
    def output_items(self, documents: Sequence[Document]) -> list[Document]:
        """Return the output in a response as the items of a conversation that repeat it.

        Args:
            documents: The events of the response in order, or its single document.
        """

    @abstractmethod
    def error_body(self, status: int, message: str, kind: str | None = None) -> dict[str, Any]:
        """Return the body of an error response. `kind`: type of the error; None for the one of the status."""
