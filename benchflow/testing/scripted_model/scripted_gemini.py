"""The Gemini API: POST /v1beta/models/{model}:generateContent, and :streamGenerateContent.

The stream is one of server-sent events with `alt=sse`, else a JSON array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model.model_request import DialectName, ModelRequest
from benchflow.testing.scripted_model.model_script import HTTPError
from benchflow.testing.scripted_model.reply_dialect import SSE, ConcreteReply, ReplyDialect, compact

FINISH = {"stop": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}
"""`finishReason` by the reason in scripts."""


class GeminiReplies(ReplyDialect):
    """Replies in the Gemini API."""

    api: Api = "gemini"
    name: DialectName = "gemini"

    def media_type(self, request: ModelRequest) -> str:
        """Return the content type of a streamed reply."""
        return SSE if request.query.get("alt") == "sse" else "application/json"

    def whole(self, concrete: ConcreteReply) -> dict[str, Any]:
        """Return the reply as JSON data, for a request without streaming."""
        return _chunk(concrete, _parts(concrete), last=True)

    def events(self, concrete: ConcreteReply) -> Iterator[str]:
        """Yield the reply event by event, as text for the stream."""
        chunks = [_chunk(concrete, [part]) for part in _stream_parts(concrete)]
        chunks.append(_chunk(concrete, [{"text": ""}], last=True))
        if self.media_type(concrete.request) == SSE:
            yield from (f"data: {compact(chunk)}\r\n\r\n" for chunk in chunks)
            return
        for index, chunk in enumerate(chunks):
            yield ("," if index else "[") + compact(chunk)
        yield "]"

    def error(self, error: HTTPError) -> dict[str, Any]:
        """Return an error as JSON data."""
        body = super().error(error)
        if error.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            body["error"]["details"] = [{"@type": kind, "retryDelay": f"{error.retry_after:g}s"}]
        return body


def _calls(concrete: ConcreteReply) -> list[dict[str, Any]]:
    """Return the parts of tool calls. Text arguments are sent as `{"input": text}`: this dialect has objects only."""
    return [
        {
            "functionCall": {
                "id": call.id,
                "name": call.name,
                "args": call.arguments if isinstance(call.arguments, dict) else {"input": call.arguments},
            }
        }
        for call in concrete.calls
    ]


def _parts(concrete: ConcreteReply) -> list[dict[str, Any]]:
    """Return the parts of a whole reply."""
    thinking = [{"text": concrete.reply.thinking, "thought": True}] if concrete.reply.thinking else []
    text = [{"text": concrete.reply.text}] if concrete.reply.text else []
    return [*thinking, *text, *_calls(concrete)]


def _stream_parts(concrete: ConcreteReply) -> list[dict[str, Any]]:
    """Return the parts of a streamed reply, with text in pieces."""
    thinking = [{"text": piece, "thought": True} for piece in concrete.pieces(concrete.reply.thinking)]
    text = [{"text": piece} for piece in concrete.pieces(concrete.reply.text)]
    return [*thinking, *text, *_calls(concrete)]


def _chunk(concrete: ConcreteReply, parts: list[dict[str, Any]], *, last: bool = False) -> dict[str, Any]:
    """Return a response, or a chunk of one, with these parts. last: it has the finish reason."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = FINISH[concrete.finish]
    usage = concrete.reply.usage
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "cachedContentTokenCount": usage.cached,
            "totalTokenCount": usage.input + usage.output,
        },
        "modelVersion": concrete.request.model,
        "responseId": concrete.id,
    }
