"""Anthropic messages: POST …/messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.llm_apis.conversation import Message, OfferedTool, ToolResult, join_texts
from benchflow.llm_apis.dialect import Dialect, ParsedResponse
from benchflow.llm_apis.json_values import Document, capped, count, document_index, is_count, put, table, tables, word


class AnthropicMessages(Dialect):
    """The dialect of Anthropic's messages. Some clients put system messages among the others."""

    api: Api = "anthropic-messages"
    path = "/v1/messages"
    path_end = re.compile(r"/messages$")
    conversation = "messages"
    unsupported = frozenset({"seed"})
    error_types = {
        400: "invalid_request_error",
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }

    def instructions(self, body: Document) -> Any:
        """Return the system prompt."""
        return body.get("system")

    def parse_message(self, item: Document) -> Message:
        """Parse a message of a conversation."""
        content = item.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else tables(content)
        return Message(
            "assistant" if item.get("role") == "assistant" else "user",
            tuple(str(block["text"]) for block in blocks if block.get("type") == "text" and block.get("text")),
            tuple(
                ToolResult(str(block.get("tool_use_id") or ""), join_texts(block.get("content")))
                for block in blocks
                if block.get("type") == "tool_result"
            ),
            tuple(
                (str(block.get("name")), block.get("input") or {})
                for block in blocks
                if block.get("type") == "tool_use"
            ),
        )

    def parse_tools(self, entry: Document) -> Iterator[OfferedTool]:
        """Yield the tool of an entry."""
        yield OfferedTool(str(entry.get("name") or ""), schema=table(entry.get("input_schema")))

    def parse_response(self, documents: Iterable[Document]) -> ParsedResponse:
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
        return ParsedResponse(
            usage=_usage(usage) if usage else None, finish="error" if has_failed else finish, model=model
        )

    def apply_sampling(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set temperature, top_p and max_tokens in a request body, and return the values that changed."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            new |= put(body, "max_tokens", capped(body.get("max_tokens"), sampling.max_tokens))
        return new

    def output_items(self, documents: Sequence[Document]) -> list[Document]:
        """Return the message of a response, assembled from its events."""
        blocks: dict[Any, dict[str, Any]] = {}
        for document in documents:
            if document.get("type") == "message":
                return [{"role": "assistant", "content": document.get("content")}]
            index = document_index(document)
            if document.get("type") == "content_block_start":
                blocks[index] = dict(table(document.get("content_block")))
            block, delta = blocks.get(index, {}), table(document.get("delta"))
            if delta.get("type") == "text_delta":
                block["text"] = str(block.get("text") or "") + str(delta.get("text") or "")
            elif delta.get("type") == "input_json_delta":
                # The block begins with an empty object as its input.
                block["input"] = str(block.get("input") or "") + str(delta.get("partial_json") or "")
        return [{"role": "assistant", "content": list(blocks.values())}]

    def error_body(self, status: int, message: str, kind: str | None = None) -> dict[str, Any]:
        """Return the body of an error response."""
        kind = kind or self.error_types.get(status, "api_error" if status >= 500 else "invalid_request_error")
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
