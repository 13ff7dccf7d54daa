"""The OpenAI chat completions API: POST /v1/chat/completions.

Thinking is sent as `reasoning_content`, a common extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchflow.testing.scripted_model.agent_tools import ConcreteCall
from benchflow.testing.scripted_model.conversation import (
    DialectName,
    Message,
    ModelRequest,
    OfferedTool,
    ToolResult,
    plain_text,
)
from benchflow.testing.scripted_model.dialects import SSE, Speech, arguments_text, event
from benchflow.testing.scripted_model.model_script import HTTPError

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls", "filtered": "content_filter"}
"""`finish_reason` by the reason in scripts."""

ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
"""Type of an error by its HTTP status."""


def openai_error(error: HTTPError) -> dict[str, Any]:
    """Return an error as JSON data, in the shape of both OpenAI dialects."""
    kind = error.type or ERRORS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": kind}}


class OpenAIChatReplies:
    """The OpenAI chat completions API as a `Dialect`."""

    name: DialectName = "openai-chat"

    def media_type(self, request: ModelRequest) -> str:
        """Return the content type of a streamed reply."""
        return SSE

    def read(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Parse a request; see `Dialect.read`."""
        system: list[str] = []
        messages: list[Message] = []
        for item in body["messages"]:
            text = plain_text(item.get("content"))
            if item["role"] in ("system", "developer"):
                system.append(text)
            elif item["role"] == "assistant":
                names = tuple(_called(call) for call in item.get("tool_calls") or ())
                messages.append(Message("assistant", text, tools=names))
            elif item["role"] == "tool":
                messages.append(Message("user", results=(ToolResult(item.get("tool_call_id", ""), text),)))
            else:
                messages.append(Message("user", text))
        return ModelRequest(
            dialect=self.name,
            model=str(body["model"]),
            stream=bool(body.get("stream")),
            system="\n".join(system),
            messages=tuple(messages),
            tools=tuple(_offered(tool) for tool in body.get("tools") or ()),
            body=body,
        )

    def whole(self, speech: Speech) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        message: dict[str, Any] = {"role": "assistant", "content": speech.reply.text or None, "refusal": None}
        if speech.reply.thinking:
            message["reasoning_content"] = speech.reply.thinking
        if speech.calls:
            message["tool_calls"] = [_call(call) for call in speech.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[speech.finish]}
        return {**_head(speech, "chat.completion"), "choices": [choice], "usage": _usage(speech)}

    def events(self, speech: Speech) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""
        head = _head(speech, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            return event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in speech.pieces(speech.reply.thinking):
            yield chunk({"reasoning_content": piece})
        for piece in speech.pieces(speech.reply.text):
            yield chunk({"content": piece})
        for index, call in enumerate(speech.calls):
            first = _call(call)
            first[first["type"]] = {**first[first["type"]], _argument_key(call): ""}
            yield chunk({"tool_calls": [{"index": index, **first}]})
            for piece in speech.pieces(arguments_text(call)):
                yield chunk({"tool_calls": [{"index": index, call.kind: {_argument_key(call): piece}}]})
        yield chunk({}, FINISH[speech.finish])
        if (speech.request.body.get("stream_options") or {}).get("include_usage"):
            yield event({**head, "choices": [], "usage": _usage(speech)})
        yield "data: [DONE]\n\n"

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        return openai_error(error)


def _called(call: Mapping[str, Any]) -> str:
    """Return the name of the tool in a tool call of a request."""
    return str((call.get("function") or call.get("custom") or {}).get("name", ""))


def _offered(tool: Mapping[str, Any]) -> OfferedTool:
    """Parse a tool that a request offers."""
    if tool.get("type") == "custom":
        return OfferedTool(tool["custom"]["name"], "custom")
    return OfferedTool(tool["function"]["name"], schema=tool["function"].get("parameters") or {})


def _argument_key(call: ConcreteCall) -> str:
    """Return the key that holds a call's arguments."""
    return "input" if call.kind == "custom" else "arguments"


def _call(call: ConcreteCall) -> dict[str, Any]:
    """Return a tool call of a reply."""
    inner = {"name": call.name, _argument_key(call): arguments_text(call)}
    return {"id": call.id, "type": call.kind, call.kind: inner}


def _head(speech: Speech, kind: str) -> dict[str, Any]:
    """Return the fields with which a response, or a chunk of it, begins. kind: the type of the object."""
    return {"id": f"chatcmpl-{speech.id}", "object": kind, "created": speech.created, "model": speech.request.model}


def _usage(speech: Speech) -> dict[str, Any]:
    """Return the token counts of a reply."""
    usage = speech.reply.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
