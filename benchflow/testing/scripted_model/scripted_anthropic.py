"""The Anthropic messages API: POST /v1/messages. Thinking is sent as a signed thinking block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model.model_request import DialectName
from benchflow.testing.scripted_model.model_script import HTTPError
from benchflow.testing.scripted_model.reply_dialect import ConcreteReply, ReplyDialect, arguments_text, event

FINISH = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use", "filtered": "refusal"}
"""`stop_reason` by the reason in scripts."""

SIGNATURE = "c2NyaXB0ZWQtdGhpbmtpbmc="
"""Signature of thinking. Opaque to clients, which send it back with the thinking."""


class AnthropicReplies(ReplyDialect):
    """Replies in the Anthropic messages API."""

    api: Api = "anthropic-messages"
    name: DialectName = "anthropic"

    def whole(self, concrete: ConcreteReply) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        return {**_head(concrete), "content": _blocks(concrete), **_stop(concrete), "usage": _usage(concrete)}

    def events(self, concrete: ConcreteReply) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""

        def emit(kind: str, **data: Any) -> str:
            return event({"type": kind, **data}, kind)

        started = {**_usage(concrete), "output_tokens": 1}
        message = {**_head(concrete), "content": [], "stop_reason": None, "stop_sequence": None, "usage": started}
        yield emit("message_start", message=message)
        yield emit("ping")
        for index, block in enumerate(_blocks(concrete)):
            kind, signature = block["type"], block.get("signature")
            empty: dict[str, Any] = {"text": "", "thinking": "", "signature": "", "input": {}}
            start = {key: empty.get(key, value) for key, value in block.items()}
            start["type"] = kind
            yield emit("content_block_start", index=index, content_block=start)
            for delta in _deltas(concrete, index, block):
                yield emit("content_block_delta", index=index, delta=delta)
            if signature:
                delta = {"type": "signature_delta", "signature": signature}
                yield emit("content_block_delta", index=index, delta=delta)
            yield emit("content_block_stop", index=index)
        yield emit("message_delta", delta=_stop(concrete), usage=_usage(concrete))
        yield emit("message_stop")

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        return {**super().error(error), "request_id": None}


def _head(concrete: ConcreteReply) -> dict[str, Any]:
    """Return the fields with which a message begins."""
    return {"id": f"msg_{concrete.id}", "type": "message", "role": "assistant", "model": concrete.request.model}


def _stop(concrete: ConcreteReply) -> dict[str, Any]:
    """Return the fields with which a message ends."""
    return {"stop_reason": FINISH[concrete.finish], "stop_sequence": None}


def _blocks(concrete: ConcreteReply) -> list[dict[str, Any]]:
    """Return the content blocks of a reply."""
    blocks: list[dict[str, Any]] = []
    if concrete.reply.thinking:
        blocks.append({"type": "thinking", "thinking": concrete.reply.thinking, "signature": SIGNATURE})
    if concrete.reply.text:
        blocks.append({"type": "text", "text": concrete.reply.text})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in concrete.calls
    ]
    return blocks


def _deltas(concrete: ConcreteReply, index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas in which a content block is streamed."""
    if block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in concrete.pieces(block["thinking"]))
    elif block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in concrete.pieces(block["text"]))
    else:
        call = next(call for call in concrete.calls if call.id == block["id"])
        text = arguments_text(call)
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in concrete.pieces(text))


def _usage(concrete: ConcreteReply) -> dict[str, Any]:
    """Return the token counts of a reply."""
    usage = concrete.reply.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
