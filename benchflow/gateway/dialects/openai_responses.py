"""OpenAI responses: POST …/responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.gateway.dialects.dialect import Answered, Document, ParsedRequest
from benchflow.gateway.dialects.openai_chat import openai_error
from benchflow.gateway.dialects.reading import capped, count, is_count, put, table, tables, text_of, word

_SEARCH = "web_search_call"
_ENDS = ("completed", "incomplete", "failed", "cancelled")


class OpenAIResponses:
    """The dialect of OpenAI's responses."""

    api: Api = "openai-responses"
    unsupported = frozenset({"seed"})
    forbidden: frozenset[str] = frozenset({"background"})
    refused = 400

    def asked(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request body. Its system text includes instructions, system and developer messages."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else tables(given)
        system = [str(body.get("instructions") or "")]
        system += [text_of(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
        users = [item for item in items if item.get("role") == "user"]
        # Some clients offer further tools among the messages.
        more = any(item.get("type") == "additional_tools" and item.get("tools") for item in items)
        return ParsedRequest(
            model=word(body.get("model")),
            stream=bool(body.get("stream")),
            tools=bool(body.get("tools")) or more,
            system="\n".join(text for text in system if text),
            user=text_of(users[-1].get("content")) if users else "",
        )

    def answered(self, documents: Iterable[Document]) -> Answered:
        """Parse a response: its events in their order, or its single document."""
        response: Document = {}
        failed = False
        for document in documents:
            if isinstance(document.get("response"), dict):
                response = document["response"]
            elif document.get("object") == "response":
                response = document
            failed = failed or document.get("type") == "error" or bool(document.get("error"))
        status = word(response.get("status"))
        reason = word(table(response.get("incomplete_details")).get("reason"))
        logprobs = [
            entry
            for item in tables(response.get("output"))
            for part in tables(item.get("content"))
            for entry in tables(part.get("logprobs"))
        ]
        return Answered(
            usage=_usage(response["usage"], response) if isinstance(response.get("usage"), dict) else None,
            finish="error" if failed else (reason or status) if status in _ENDS else None,
            logprobs=logprobs or None,
            model=word(response.get("model")),
        )

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set temperature, top_p and max_output_tokens in a request body, and return the values that changed."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            name = "max_output_tokens"
            new |= put(body, name, capped(body.get(name), sampling.max_tokens))
        return new

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Change nothing and return an empty dict: responses always report usage."""
        return {}

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
        return openai_error(status, message)


def _usage(usage: Document, response: Document) -> CallUsage:
    # Each search is charged, and one item may hold several.
    actions = [table(item.get("action")) for item in tables(response.get("output")) if item.get("type") == _SEARCH]
    searches = (action.get("queries") for action in actions)
    details = table(usage.get("input_tokens_details"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("input_tokens")) and is_count(usage.get("output_tokens"))),
        input_tokens=count(usage.get("input_tokens")),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(details.get("cached_tokens")),
        cache_write_tokens=count(details.get("cache_write_tokens")),
        reasoning_tokens=count(table(usage.get("output_tokens_details")).get("reasoning_tokens")),
        web_searches=sum(max(1, len(queries)) if isinstance(queries, list) else 1 for queries in searches),
    )
