"""OpenAI chat completions, a format that many other servers have, too: POST …/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.gateway.dialects.dialect import Answered, Document, ParsedRequest
from benchflow.gateway.dialects.reading import capped, count, is_count, put, table, tables, text_of, word

_SYSTEM = ("system", "developer")


class OpenAIChat:
    """The dialect of OpenAI's chat completions."""

    api: Api = "openai-chat"
    unsupported: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    refused = 402

    def asked(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request body. Its system text includes developer messages."""
        messages = tables(body.get("messages"))
        users = [message for message in messages if message.get("role") == "user"]
        return ParsedRequest(
            model=word(body.get("model")),
            stream=bool(body.get("stream")),
            tools=bool(body.get("tools") or body.get("functions")),
            system="\n".join(text_of(message.get("content")) for message in messages if message.get("role") in _SYSTEM),
            user=text_of(users[-1].get("content")) if users else "",
        )

    def answered(self, documents: Iterable[Document]) -> Answered:
        """Parse a response: its events in their order, or its single document. Only the first choice counts."""
        usage, finish, model = None, None, None
        has_failed = False
        token_ids: list[Any] = []
        logprobs: list[Any] = []
        for document in documents:
            if isinstance(document.get("usage"), dict):
                usage = _usage(document["usage"])
            model = word(document.get("model")) or model
            has_failed = has_failed or bool(document.get("error"))
            for choice in tables(document.get("choices"))[:1]:
                finish = word(choice.get("finish_reason")) or finish
                token_ids += choice["token_ids"] if isinstance(choice.get("token_ids"), list) else []
                content = table(choice.get("logprobs")).get("content")
                logprobs += content if isinstance(content, list) else []
        return Answered(usage, "error" if has_failed else finish, token_ids or None, logprobs or None, model)

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set sampling parameters in a request body, and return the values that changed, by place."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p", "seed"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            for name in _limits(body, base_url):
                new |= put(body, name, capped(body.get(name), sampling.max_tokens))
        return new

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Set `stream_options.include_usage` in a streamed request; return it if that changed the body."""
        return put(body, "stream_options.include_usage", True) if body.get("stream") else {}

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
        return openai_error(status, message)


ERRORS = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


def openai_error(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error response in either OpenAI dialect."""
    kind = ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def _limits(body: Document, base_url: str) -> list[str]:
    """Return the keys to cap. OpenAI's newer models refuse the older key; other servers may not know the newer one."""
    asked = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    own = (urlsplit(base_url).hostname or "").endswith("openai.com")
    return asked or ["max_completion_tokens" if own else "max_tokens"]


def _usage(usage: Document) -> CallUsage:
    details = table(usage.get("prompt_tokens_details"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("prompt_tokens")) and is_count(usage.get("completion_tokens"))),
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
        cached_tokens=count(details.get("cached_tokens")),
        cache_write_tokens=count(details.get("cache_write_tokens")),
        reasoning_tokens=count(table(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
