"""What the gateway knows of a wire format: the protocol, and what a call asks and an answer tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow.contracts.gateway import Api, CallUsage, Sampling

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a call asks. tools: whether it offers any. system, user: the system prompt; what was said last."""

    model: str | None = None
    stream: bool = False
    tools: bool = False
    system: str = ""
    user: str = ""


@dataclass(frozen=True)
class Answered:
    """What an answer tells, as far as it does. finish: in the endpoint's own word, None while it is not at its end.

    model: the one that has answered, by the endpoint's own account.
    """

    usage: CallUsage | None = None
    finish: str | None = None
    token_ids: list[Any] | None = None
    logprobs: Any = None
    model: str | None = None


class Dialect(Protocol):
    """One wire format.

    unsupported: sampling parameters that it has no place for. forbidden: keys that, where they are true, have the
    endpoint answer later, at another path, where nobody would count the tokens. refused: the status that its clients
    take for the end, and do not repeat.
    """

    api: Api
    unsupported: frozenset[str]
    forbidden: frozenset[str]
    refused: int

    def asked(self, path: str, body: Document) -> Asked:
        """What was asked. path: without its query."""

    def answered(self, documents: Iterable[Document]) -> Answered:
        """What was answered, from its events in their order, or from the one document that it is."""

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Put the parameters into the body; the values that are new in it, by their place."""

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Have the endpoint tell the usage where it would not; what is new in the body, by its place."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an error."""
