"""OpenAI chat completions, a format that many other servers have, too: POST …/chat/completions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.llm_apis.conversation import Message, OfferedTool, ToolResult, iter_texts, join_texts
from benchflow.llm_apis.dialect import Dialect, ParsedResponse
from benchflow.llm_apis.json_values import Document, capped, count, document_index, is_count, put, table, tables, word

_CALL_KINDS = {"function": "arguments", "custom": "input"}
"""Key of a tool call's arguments by the kind of the tool."""


class OpenAIDialect(Dialect):
    """Base of OpenAI's two dialects, with their errors."""

    error_types = {
        401: "authentication_error",
        402: "insufficient_quota",
        403: "permission_error",
        429: "rate_limit_error",
    }

    def error_body(self, status: int, message: str, kind: str | None = None) -> dict[str, Any]:
        """Return the body of an error response."""
        kind = kind or self.error_types.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


class OpenAIChat(OpenAIDialect):
    """The dialect of OpenAI's chat completions."""

    api: Api = "openai-chat"
    path = "/v1/chat/completions"
    path_end = re.compile(r"/chat/completions$")
    conversation = "messages"

    def parse_message(self, item: Document) -> Message:
        """Parse a message of a conversation."""
        content = item.get("content")
        if item.get("role") == "assistant":
            calls = tuple(_parse_call(call) for call in tables(item.get("tool_calls")))
            return Message("assistant", tuple(iter_texts(content)), calls=calls)
        if item.get("role") == "tool":
            return Message("user", results=(ToolResult(str(item.get("tool_call_id") or ""), join_texts(content)),))
        return Message("user", tuple(iter_texts(content)))

    def tool_entries(self, body: Document) -> list[Any]:
        """Return the entries of `tools`, or of `functions`, its former name."""
        return super().tool_entries(body) or super().tool_entries({"tools": body.get("functions")})

    def parse_tools(self, entry: Document) -> Iterator[OfferedTool]:
        """Yield the tool of an entry."""
        kind: Any = "custom" if entry.get("type") == "custom" else "function"
        tool = table(entry.get(kind)) or entry
        yield OfferedTool(str(tool.get("name") or ""), kind, table(tool.get("parameters")))

    def parse_response(self, documents: Iterable[Document]) -> ParsedResponse:
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
        return ParsedResponse(usage, "error" if has_failed else finish, token_ids or None, logprobs or None, model)

    def apply_sampling(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set sampling parameters in a request body, and return the values that changed, by place."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p", "seed"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            for name in _limits(body, base_url):
                new |= put(body, name, capped(body.get(name), sampling.max_tokens))
        return new

    def output_items(self, documents: Sequence[Document]) -> list[Document]:
        """Return the first choice's messages. One of a stream is assembled from its deltas."""
        items: list[Document] = []
        text, calls = "", dict[Any, dict[str, Any]]()
        for document in documents:
            for choice in tables(document.get("choices"))[:1]:
                if isinstance(choice.get("message"), dict):
                    items.append({**choice["message"], "role": "assistant"})
                delta = table(choice.get("delta"))
                text += word(delta.get("content")) or ""
                for piece in tables(delta.get("tool_calls")):
                    call = calls.setdefault(document_index(piece), {})
                    for kind, key in _CALL_KINDS.items():
                        if isinstance(piece.get(kind), dict):
                            whole = call.setdefault(kind, {"name": "", key: ""})
                            whole |= {part: whole[part] + (word(piece[kind].get(part)) or "") for part in whole}
        return [*items, {"role": "assistant", "content": text, "tool_calls": list(calls.values())}]

    def request_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Set `stream_options.include_usage` in a streamed request; return it if that changed the body."""
        return put(body, "stream_options.include_usage", True) if body.get("stream") else {}


def _parse_call(call: Document) -> tuple[str, Any]:
    """Return the name and the arguments of a tool call."""
    kind = "custom" if isinstance(call.get("custom"), dict) else "function"
    inner = table(call.get(kind))
    return str(inner.get("name", "")), inner.get(_CALL_KINDS[kind]) or {}


def _limits(body: Document, base_url: str) -> list[str]:
    """Return the keys to cap. OpenAI's newer models refuse the older key; other servers may not know the newer one."""
    given = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    own = (urlsplit(base_url).hostname or "").endswith("openai.com")
    return given or ["max_completion_tokens" if own else "max_tokens"]


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
