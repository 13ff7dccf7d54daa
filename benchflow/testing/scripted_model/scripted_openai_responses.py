"""The OpenAI responses API: POST /v1/responses. Thinking is sent as a reasoning item with a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model.model_request import DialectName
from benchflow.testing.scripted_model.reply_dialect import ConcreteReply, ReplyDialect, arguments_text, event

INCOMPLETE = {"length": "max_output_tokens", "filtered": "content_filter"}
"""Reason of an incomplete response by the reason in scripts."""

Emit = Callable[..., str]
"""Function that returns an event of the stream, from its type and its fields."""


class OpenAIResponsesReplies(ReplyDialect):
    """Replies in the OpenAI responses API."""

    api: Api = "openai-responses"
    name: DialectName = "openai-responses"

    def whole(self, concrete: ConcreteReply) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        return _response(concrete, _items(concrete))

    def events(self, concrete: ConcreteReply) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""
        count = 0

        def emit(kind: str, **data: Any) -> str:
            nonlocal count
            count += 1
            return event({"type": kind, "sequence_number": count - 1, **data}, kind)

        started = {**_response(concrete, []), "status": "in_progress", "usage": None, "incomplete_details": None}
        yield emit("response.created", response=started)
        yield emit("response.in_progress", response=started)
        items = _items(concrete)
        for index, item in enumerate(items):
            yield emit("response.output_item.added", output_index=index, item=_make_empty_item(item))
            yield from _deltas(concrete, emit, index, item)
            yield emit("response.output_item.done", output_index=index, item=item)
        whole = _response(concrete, items)
        yield emit(f"response.{whole['status']}", response=whole)


def _items(concrete: ConcreteReply) -> list[dict[str, Any]]:
    """Return the output items of a reply."""
    items: list[dict[str, Any]] = []
    if concrete.reply.thinking:
        summary = [{"type": "summary_text", "text": concrete.reply.thinking}]
        items.append({"id": f"rs_{concrete.id}", "type": "reasoning", "summary": summary, "encrypted_content": None})
    if concrete.reply.text or not concrete.calls:
        part = {"type": "output_text", "text": concrete.reply.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{concrete.id}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    for index, call in enumerate(concrete.calls):
        kind, key = ("custom_tool_call", "input") if call.kind == "custom" else ("function_call", "arguments")
        prefix = "ctc" if call.kind == "custom" else "fc"
        item = {"id": f"{prefix}_{concrete.id}_{index}", "type": kind, "status": "completed", "call_id": call.id}
        item |= {"name": call.name, key: arguments_text(call)}
        items.append(item | ({"namespace": call.namespace} if call.namespace else {}))
    return items


def _make_empty_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is announced before its deltas: in progress, without content."""
    empty = {"summary": [], "content": [], "arguments": "", "input": ""}
    item = {key: empty.get(key, value) for key, value in item.items()}
    return {**item, "status": "in_progress"} if "status" in item else item


def _deltas(concrete: ConcreteReply, emit: Emit, index: int, item: dict[str, Any]) -> Iterator[str]:
    """Yield the events in which the content of an item is streamed."""
    at = {"item_id": item["id"], "output_index": index}
    if item["type"] == "reasoning":
        text, at = item["summary"][0]["text"], {**at, "summary_index": 0}
        part = {"type": "summary_text", "text": ""}
        yield emit("response.reasoning_summary_part.added", **at, part=part)
        for piece in concrete.pieces(text):
            yield emit("response.reasoning_summary_text.delta", **at, delta=piece)
        yield emit("response.reasoning_summary_text.done", **at, text=text)
        yield emit("response.reasoning_summary_part.done", **at, part={**part, "text": text})
    elif item["type"] == "message":
        part, at = item["content"][0], {**at, "content_index": 0}
        yield emit("response.content_part.added", **at, part={**part, "text": ""})
        for piece in concrete.pieces(part["text"]):
            yield emit("response.output_text.delta", **at, delta=piece, logprobs=[])
        yield emit("response.output_text.done", **at, text=part["text"], logprobs=[])
        yield emit("response.content_part.done", **at, part=part)
    elif item["type"] == "function_call":
        for piece in concrete.pieces(item["arguments"]):
            yield emit("response.function_call_arguments.delta", **at, delta=piece)
        named = {"name": item["name"], "arguments": item["arguments"]}
        yield emit("response.function_call_arguments.done", **at, **named)
    else:
        for piece in concrete.pieces(item["input"]):
            yield emit("response.custom_tool_call_input.delta", **at, delta=piece)
        yield emit("response.custom_tool_call_input.done", **at, input=item["input"])


def _response(concrete: ConcreteReply, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response object with these output items."""
    body, usage = concrete.request.body, concrete.reply.usage
    reason = INCOMPLETE.get(concrete.finish)
    return {
        "id": f"resp_{concrete.id}",
        "object": "response",
        "created_at": concrete.created,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": concrete.request.model,
        "output": items,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "temperature": body.get("temperature"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        },
    }
