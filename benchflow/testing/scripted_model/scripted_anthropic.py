"""The Anthropic messages API: POST /v1/messages. Thinking is sent as a signed thinking block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model.model_request import DialectName
from benchflow.testing.scripted_model.model_script import HTTPError
from benchflow.testing.scripted_model.reply_dialect import ReplyDialect, Speech, arguments_text, event

FINISH = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use", "filtered": "refusal"}
"""`stop_reason` by the reason in scripts."""

SIGNATURE = "c2NyaXB0ZWQtdGhpbmtpbmc="
"""Signature of thinking. Opaque to clients, which send it back with the thinking."""


class AnthropicReplies(ReplyDialect):
    """Replies in the Anthropic messages API."""

    api: Api = "anthropic-messages"
    name: DialectName = "anthropic"

    def whole(self, speech: Speech) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        return {**_head(speech), "content": _blocks(speech), **_stop(speech), "usage": _usage(speech)}

    def events(self, speech: Speech) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""

        def emit(kind: str, **data: Any) -> str:
            return event({"type": kind, **data}, kind)

        started = {**_usage(speech), "output_tokens": 1}
        message = {**_head(speech), "content": [], "stop_reason": None, "stop_sequence": None, "usage": started}
        yield emit("message_start", message=message)
        yield emit("ping")
        for index, block in enumerate(_blocks(speech)):
            kind, signature = block["type"], block.get("signature")
            empty: dict[str, Any] = {"text": "", "thinking": "", "signature": "", "input": {}}
            start = {key: empty.get(key, value) for key, value in block.items()}
            start["type"] = kind
            yield emit("content_block_start", index=index, content_block=start)
            for delta in _deltas(speech, index, block):
                yield emit("content_block_delta", index=index, delta=delta)
            if signature:
                delta = {"type": "signature_delta", "signature": signature}
                yield emit("content_block_delta", index=index, delta=delta)
            yield emit("content_block_stop", index=index)
        yield emit("message_delta", delta=_stop(speech), usage=_usage(speech))
        yield emit("message_stop")

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        return {**super().error(error), "request_id": None}


def _head(speech: Speech) -> dict[str, Any]:
    """Return the fields with which a message begins."""
    return {"id": f"msg_{speech.id}", "type": "message", "role": "assistant", "model": speech.request.model}


def _stop(speech: Speech) -> dict[str, Any]:
    """Return the fields with which a message ends."""
    return {"stop_reason": FINISH[speech.finish], "stop_sequence": None}


def _blocks(speech: Speech) -> list[dict[str, Any]]:
    """Return the content blocks of a reply."""
    blocks: list[dict[str, Any]] = []
    if speech.reply.thinking:
        blocks.append({"type": "thinking", "thinking": speech.reply.thinking, "signature": SIGNATURE})
    if speech.reply.text:
        blocks.append({"type": "text", "text": speech.reply.text})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in speech.calls]
    return blocks


def _deltas(speech: Speech, index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas in which a content block is streamed."""
    if block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in speech.pieces(block["thinking"]))
    elif block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in speech.pieces(block["text"]))
    else:
        call = next(call for call in speech.calls if call.id == block["id"])
        text = arguments_text(call)
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in speech.pieces(text))


def _usage(speech: Speech) -> dict[str, Any]:
    """Return the token counts of a reply."""
    usage = speech.reply.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
