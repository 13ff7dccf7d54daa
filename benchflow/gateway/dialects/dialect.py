"""The protocol of a wire format (dialect), and the parsed request and response of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow.contracts.gateway import Api, CallUsage, Sampling

Document = Mapping[str, Any]
"""A JSON object of a request or a response."""


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request."""

    model: str | None = None
    """Requested model; None if the request names none."""

    stream: bool = False
    """Whether the response is to be streamed."""

    tools: bool = False
    """Whether the request offers any tools."""

    system: str = ""
    """Text of the system prompt."""

    user: str = ""
    """Text of the last user message."""


@dataclass(frozen=True)
class Answered:
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


class Dialect(Protocol):
    """One wire format.

    Attributes:
        api: Name of the format.
        unsupported: Sampling parameters that it does not have.
        forbidden: Keys of a request that, if true, make the endpoint answer later at another path, where the gateway
            could not count the tokens.
        refused: HTTP status of a refusal that its clients do not retry.
    """

    api: Api
    unsupported: frozenset[str]
    forbidden: frozenset[str]
    refused: int

    def asked(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request body. `path` is the request's path without its query."""

    def answered(self, documents: Iterable[Document]) -> Answered:
        """Parse a response: its events in their order, or its single document."""

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set sampling parameters in a request body, and return the values that changed, by place.

        Args:
            body: The body, which is changed.
            sampling: The parameters; `max_tokens` only lowers the agent's own value.
            base_url: Address of the endpoint, by which names of parameters may differ.
        """

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make a request ask for usage if its response would lack it; return the values that changed, by place."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
