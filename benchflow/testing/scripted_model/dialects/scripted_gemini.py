"""The Gemini API: POST /v1beta/models/{model}:generateContent, and :streamGenerateContent.

The stream is one of server-sent events with `alt=sse`, else a JSON array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchflow.testing.scripted_model.conversation import (
    DialectName,
    Message,
    ModelRequest,
    OfferedTool,
    ToolResult,
    plain_text,
)
from benchflow.testing.scripted_model.dialects import SSE, Speech, compact
from benchflow.testing.scripted_model.model_script import HTTPError

FINISH = {"stop": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}
"""`finishReason` by the reason in scripts."""

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Status of an error by its HTTP status."""


class GeminiReplies:
    """The Gemini API as a `Dialect`."""

    name: DialectName = "gemini"

    def media_type(self, request: ModelRequest) -> str:
        """Return the content type of a streamed reply."""
        return SSE if request.query.get("alt") == "sse" else "application/json"

    def read(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> ModelRequest:
        """Parse a request; see `Dialect.read`."""
        model, _, verb = path.rpartition("/models/")[2].partition(":")
        system = body.get("systemInstruction") or body.get("system_instruction") or {}
        return ModelRequest(
            dialect=self.name,
            model=model,
            stream=verb == "streamGenerateContent",
            system=plain_text(system.get("parts") if isinstance(system, dict) else system),
            messages=tuple(_message(item) for item in body["contents"]),
            tools=tuple(_offered(body.get("tools") or ())),
            body=body,
            query=query,
        )

    def whole(self, speech: Speech) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        return _chunk(speech, _parts(speech), last=True)

    def events(self, speech: Speech) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""
        chunks = [_chunk(speech, [part]) for part in _stream_parts(speech)]
        chunks.append(_chunk(speech, [{"text": ""}], last=True))
        if self.media_type(speech.request) == SSE:
            yield from (f"data: {compact(chunk)}\r\n\r\n" for chunk in chunks)
            return
        for index, chunk in enumerate(chunks):
            yield ("," if index else "[") + compact(chunk)
        yield "]"

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        inner: dict[str, Any] = {"code": error.status, "message": error.message}
        inner["status"] = error.type or STATUS.get(error.status, "UNKNOWN")
        if error.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            inner["details"] = [{"@type": kind, "retryDelay": f"{error.retry_after:g}s"}]
        return {"error": inner}


def _message(item: Mapping[str, Any]) -> Message:
    """Parse a message of a request."""
    texts, results, tools = [], [], []
    for part in item.get("parts") or ():
        if "functionResponse" in part:
            response = part["functionResponse"]
            text = plain_text(list((response.get("response") or {}).values()))
            results.append(ToolResult(str(response.get("id") or ""), text, str(response.get("name", ""))))
        elif "functionCall" in part:
            tools.append(str(part["functionCall"].get("name", "")))
        elif not part.get("thought"):
            texts.append(str(part.get("text") or ""))
    role: Any = "assistant" if item.get("role") == "model" else "user"
    return Message(role, "\n".join(text for text in texts if text), tuple(results), tuple(tools))


def _offered(tools: Any) -> Iterator[OfferedTool]:
    """Yield the tools that a request offers: functions, and built-in tools by their names."""
    for tool in tools:
        declared = tool.get("functionDeclarations") or tool.get("function_declarations")
        if declared is None:
            yield from (OfferedTool(name) for name in tool)
        for function in declared or ():
            schema = function.get("parametersJsonSchema") or function.get("parameters") or {}
            yield OfferedTool(str(function["name"]), schema=schema)


def _calls(speech: Speech) -> list[dict[str, Any]]:
    """Return the parts of tool calls. Text arguments are sent as `{"input": text}`: this dialect has objects only."""
    return [
        {
            "functionCall": {
                "id": call.id,
                "name": call.name,
                "args": call.arguments if isinstance(call.arguments, dict) else {"input": call.arguments},
            }
        }
        for call in speech.calls
    ]


def _parts(speech: Speech) -> list[dict[str, Any]]:
    """Return the parts of a whole reply."""
    thinking = [{"text": speech.reply.thinking, "thought": True}] if speech.reply.thinking else []
    text = [{"text": speech.reply.text}] if speech.reply.text else []
    return [*thinking, *text, *_calls(speech)]


def _stream_parts(speech: Speech) -> list[dict[str, Any]]:
    """Return the parts of a streamed reply, with text in pieces."""
    thinking = [{"text": piece, "thought": True} for piece in speech.pieces(speech.reply.thinking)]
    text = [{"text": piece} for piece in speech.pieces(speech.reply.text)]
    return [*thinking, *text, *_calls(speech)]


def _chunk(speech: Speech, parts: list[dict[str, Any]], *, last: bool = False) -> dict[str, Any]:
    """Return a response, or a chunk of one, with these parts. last: it has the finish reason."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = FINISH[speech.finish]
    usage = speech.reply.usage
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "cachedContentTokenCount": usage.cached,
            "totalTokenCount": usage.input + usage.output,
        },
        "modelVersion": speech.request.model,
        "responseId": speech.id,
    }
