"""Gemini: POST …/models/{model}:generateContent and :streamGenerateContent (with `alt=sse`, or a JSON array)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.llm_apis.conversation import Message, OfferedTool, ToolResult, join_texts
from benchflow.llm_apis.dialect import Dialect, ParsedResponse
from benchflow.llm_apis.json_values import Document, capped, count, is_count, put, table, tables, word

_PLACES = {
    "temperature": ("temperature", "temperature"),
    "top_p": ("topP", "top_p"),
    "max_tokens": ("maxOutputTokens", "max_output_tokens"),
    "seed": ("seed", "seed"),
}
"""Both spellings of each parameter. Gemini accepts either, and refuses a request that has both."""


class Gemini(Dialect):
    """The dialect of Gemini. Model and streaming are in a request's path."""

    api: Api = "gemini"
    path = "/v1beta/models/{model}:generateContent"
    path_end = re.compile(r".*/models/([^:]+):(generateContent|streamGenerateContent)$")
    conversation = "contents"
    error_types = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        402: "RESOURCE_EXHAUSTED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        502: "UNAVAILABLE",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }

    def parse_target(self, path: str, body: Document) -> tuple[str | None, bool]:
        """Return the model and whether to stream, by the path."""
        found = self.path_end.match(path)
        return (found[1], found[2] == "streamGenerateContent") if found else (None, False)

    def instructions(self, body: Document) -> Any:
        """Return the parts of the system prompt, in either spelling."""
        system = body.get("systemInstruction") or body.get("system_instruction")
        return system.get("parts") if isinstance(system, dict) else system

    def items(self, body: Document) -> Sequence[Document]:
        """Return the contents of a request. One without a role is the user's."""
        return [{"role": "user", **content} for content in tables(body.get("contents"))]

    def parse_message(self, item: Document) -> Message:
        """Parse a content of a conversation."""
        texts, results, calls = [], [], []
        for part in tables(item.get("parts")):
            if response := table(part.get("functionResponse")):
                text = join_texts(list(table(response.get("response")).values()))
                results.append(ToolResult(str(response.get("id") or ""), text, str(response.get("name", ""))))
            elif call := table(part.get("functionCall")):
                calls.append((str(call.get("name", "")), call.get("args") or {}))
            elif not part.get("thought") and part.get("text"):
                texts.append(str(part["text"]))
        role: Any = "assistant" if item.get("role") == "model" else "user"
        return Message(role, tuple(texts), tuple(results), tuple(calls))

    def parse_tools(self, entry: Document) -> Iterator[OfferedTool]:
        """Yield the tools of an entry: functions, and built-in tools by their names."""
        declared = entry.get("functionDeclarations") or entry.get("function_declarations")
        if declared is None:
            yield from (OfferedTool(name) for name in entry)
        for function in tables(declared):
            schema = function.get("parametersJsonSchema") or function.get("parameters")
            yield OfferedTool(str(function.get("name") or ""), schema=table(schema))

    def parse_response(self, documents: Iterable[Document]) -> ParsedResponse:
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
        return ParsedResponse(usage, "error" if has_failed else finish, logprobs=logprobs or None, model=model)

    def apply_sampling(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
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

    def output_items(self, documents: Sequence[Document]) -> list[Document]:
        """Return the first candidate's contents."""
        first = [candidate for document in documents for candidate in tables(document.get("candidates"))[:1]]
        return [{**table(candidate.get("content")), "role": "model"} for candidate in first]

    def error_body(self, status: int, message: str, kind: str | None = None) -> dict[str, Any]:
        """Return the body of an error response."""
        kind = kind or self.error_types.get(status, "UNKNOWN")
        return {"error": {"code": status, "message": message, "status": kind}}


def _usage(usage: Document) -> CallUsage:
    reasoning = count(usage.get("thoughtsTokenCount"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("promptTokenCount")) and is_count(usage.get("candidatesTokenCount"))),
        input_tokens=count(usage.get("promptTokenCount")) + count(usage.get("toolUsePromptTokenCount")),
        output_tokens=count(usage.get("candidatesTokenCount")) + reasoning,
        cached_tokens=count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=reasoning,
    )
