"""Gemini: POST …/models/{model}:generateContent and :streamGenerateContent (with `alt=sse`, or a JSON array)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.gateway.dialects.dialect import Answered, Document, ParsedRequest
from benchflow.gateway.dialects.reading import capped, count, is_count, put, table, tables, text_of, word

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PATH = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent)$")
_PLACES = {
    "temperature": ("temperature", "temperature"),
    "top_p": ("topP", "top_p"),
    "max_tokens": ("maxOutputTokens", "max_output_tokens"),
    "seed": ("seed", "seed"),
}
"""Both spellings of each parameter. Gemini accepts either, and refuses a request that has both."""


class Gemini:
    """The dialect of Gemini."""

    api: Api = "gemini"
    unsupported: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    refused = 402

    def asked(self, path: str, body: Document) -> ParsedRequest:
        """Parse a request: model and streaming are in its path."""
        found = _PATH.search(path)
        contents = tables(body.get("contents"))
        users = [content for content in contents if content.get("role", "user") == "user"]
        system = body.get("systemInstruction") or body.get("system_instruction")
        return ParsedRequest(
            model=found.group(1) if found else None,
            stream=found is not None and found.group(2) == "streamGenerateContent",
            tools=bool(body.get("tools")),
            system=text_of(table(system).get("parts") if isinstance(system, dict) else system),
            user=text_of(users[-1].get("parts")) if users else "",
        )

    def answered(self, documents: Iterable[Document]) -> Answered:
        """Parse a response: its events in their order, or its single document."""
        usage, finish, model = None, None, None
        has_failed = False
        logprobs: list[Any] = []
        for document in documents:
            if isinstance(document.get("usageMetadata"), dict):
                usage = _usage(document["usageMetadata"])
            model = word(document.get("modelVersion")) or model
            finish = word(table(document.get("promptFeedback")).get("blockReason")) or finish
            has_failed = has_failed or bool(document.get("error"))
            for candidate in tables(document.get("candidates"))[:1]:
                finish = word(candidate.get("finishReason")) or finish
                if isinstance(candidate.get("logprobsResult"), dict):
                    logprobs.append(candidate["logprobsResult"])
        return Answered(usage, "error" if has_failed else finish, logprobs=logprobs or None, model=model)

    def sample(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set sampling parameters in a request's generation config, and return the values that changed, by place."""
        config = "generation_config" if "generation_config" in body else "generationConfig"
        inner = table(body.get(config))
        new: dict[str, Any] = {}
        for name, value in sampling.given.items():
            camel, snake = _PLACES[name]
            place = snake if snake in inner else camel
            if name == "max_tokens":
                value = capped(inner.get(place), int(value))
            new |= put(body, f"{config}.{place}", value)
        return new

    def ask_for_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Change nothing and return an empty dict: responses always report usage."""
        return {}

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an error response."""
        return {"error": {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}}


def _usage(usage: Document) -> CallUsage:
    reasoning = count(usage.get("thoughtsTokenCount"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("promptTokenCount")) and is_count(usage.get("candidatesTokenCount"))),
        input_tokens=count(usage.get("promptTokenCount")) + count(usage.get("toolUsePromptTokenCount")),
        output_tokens=count(usage.get("candidatesTokenCount")) + reasoning,
        cached_tokens=count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=reasoning,
    )
