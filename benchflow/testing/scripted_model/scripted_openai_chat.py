"""The OpenAI chat completions API: POST /v1/chat/completions.

Thinking is sent as `reasoning_content`, a common extension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model.agent_tools import ConcreteCall
from benchflow.testing.scripted_model.model_request import DialectName
from benchflow.testing.scripted_model.reply_dialect import ConcreteReply, ReplyDialect, arguments_text, event

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls", "filtered": "content_filter"}
"""`finish_reason` by the reason in scripts."""


class OpenAIChatReplies(ReplyDialect):
    """Replies in the OpenAI chat completions API."""

    api: Api = "openai-chat"
    name: DialectName = "openai-chat"

    def whole(self, concrete: ConcreteReply) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        message: dict[str, Any] = {"role": "assistant", "content": concrete.reply.text or None, "refusal": None}
        if concrete.reply.thinking:
            message["reasoning_content"] = concrete.reply.thinking
        if concrete.calls:
            message["tool_calls"] = [_call(call) for call in concrete.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[concrete.finish]}
        return {**_head(concrete, "chat.completion"), "choices": [choice], "usage": _usage(concrete)}

    def events(self, concrete: ConcreteReply) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""
        head = _head(concrete, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            return event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in concrete.pieces(concrete.reply.thinking):
            yield chunk({"reasoning_content": piece})
        for piece in concrete.pieces(concrete.reply.text):
            yield chunk({"content": piece})
        for index, call in enumerate(concrete.calls):
            first = _call(call)
            first[first["type"]] = {**first[first["type"]], _argument_key(call): ""}
            yield chunk({"tool_calls": [{"index": index, **first}]})
            for piece in concrete.pieces(arguments_text(call)):
                yield chunk({"tool_calls": [{"index": index, call.kind: {_argument_key(call): piece}}]})
        yield chunk({}, FINISH[concrete.finish])
        if (concrete.request.body.get("stream_options") or {}).get("include_usage"):
            yield event({**head, "choices": [], "usage": _usage(concrete)})
        yield "data: [DONE]\n\n"


def _argument_key(call: ConcreteCall) -> str:
    """Return the key that holds a call's arguments."""
    return "input" if call.kind == "custom" else "arguments"


def _call(call: ConcreteCall) -> dict[str, Any]:
    """Return a tool call of a reply."""
    inner = {"name": call.name, _argument_key(call): arguments_text(call)}
    return {"id": call.id, "type": call.kind, call.kind: inner}


def _head(concrete: ConcreteReply, kind: str) -> dict[str, Any]:
    """Return the fields with which a response, or a chunk of it, begins. kind: the type of the object."""
    return {
        "id": f"chatcmpl-{concrete.id}",
        "object": kind,
        "created": concrete.created,
        "model": concrete.request.model,
    }


def _usage(concrete: ConcreteReply) -> dict[str, Any]:
    """Return the token counts of a reply."""
    usage = concrete.reply.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
