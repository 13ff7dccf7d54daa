"""Anthropic messages: POST …/messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.gateway.dialects.dialect import Answered, Document, ParsedRequest
from benchflow.gateway.dialects.reading import capped, count, is_count, put, table, tables, text_of, word

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    504: "timeout_error",
}


class AnthropicMessages:
    """The dialect of Anthropic's messages."""

    api: Api = "anthropic-messages"
    unsupported = frozenset({"seed"})
    forbidden: frozenset[str] = frozenset()
    refused = 402

    def asked(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request body. Its system text includes system messages among the others."""
        messages = tables(body.get("messages"))
        # Some clients put system messages among the others.
        inline = [text_of(message.get("content")) for message in messages if message.get("role") == "system"]
        users = [message for message in messages if message.get("role") == "user"]
        return ParsedRequest(
            model=word(body.get("model")),
            stream=bool(body.get("stream")),
            tools=bool(body.get("tools")),
            system="\n".join(text for text in [text_of(body.get("system")), *inline] if text),
            user=text_of(users[-1].get("content")) if users else "",
        )

    def answered(self, documents: Iterable[Document]) -> Answered:
        """Parse a response: its events in their order, or its single document."""
        usage: dict[str, Any] = {}
        finish = model = None
        has_failed = False
        for document in documents:
            message = table(document.get("message")) or document
            model = word(message.get("model")) or model
            # Counts are of the whole message so far: later ones replace earlier ones.
            usage |= {name: value for name, value in table(message.get("usage")).items() if value is not None}
            finish = word(message.get("stop_reason")) or word(table(document.get("delta")).get("stop_reason")) or finish
            has_failed = has_failed or document.get("type") == "error" or bool(document.get("error"))
        told = _usage(usage) if usage else None
        return Answered(usage=told, finish="error" if has_failed else finish, model=model)

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set temperature, top_p and max_tokens in a request body, and return the values that changed."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            new |= put(body, "max_tokens", capped(body.get("max_tokens"), sampling.max_tokens))
        return new

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Change nothing and return an empty dict: responses always report usage."""
        return {}

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
        kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def _usage(usage: Document) -> CallUsage:
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    for_an_hour = count(table(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("input_tokens")) and is_count(usage.get("output_tokens"))),
        input_tokens=count(usage.get("input_tokens")) + read + written,
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=read,
        cache_write_tokens=written,
        hour_cache_write_tokens=min(written, for_an_hour),
        web_searches=count(table(usage.get("server_tool_use")).get("web_search_requests")),
    )
