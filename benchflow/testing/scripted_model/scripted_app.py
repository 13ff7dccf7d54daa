"""The HTTP side: find a request's dialect by its path, and send the reply, error or fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from benchflow.llm_apis import Dialect, find_dialect
from benchflow.testing.scripted_model.agent_tools import NoSuchToolError, translate_call
from benchflow.testing.scripted_model.call_log import CallLog, ReceivedCall
from benchflow.testing.scripted_model.model_request import ModelRequest
from benchflow.testing.scripted_model.model_script import HTTPError, Reply
from benchflow.testing.scripted_model.reply_choice import Chooser, ReplyChoice, unanswered
from benchflow.testing.scripted_model.reply_dialect import ConcreteReply, ReplyDialect
from benchflow.testing.scripted_model.scripted_anthropic import AnthropicReplies
from benchflow.testing.scripted_model.scripted_gemini import GeminiReplies
from benchflow.testing.scripted_model.scripted_openai_chat import OpenAIChatReplies
from benchflow.testing.scripted_model.scripted_openai_responses import OpenAIResponsesReplies

_REPLIES: tuple[ReplyDialect, ...] = (
    OpenAIChatReplies(),
    OpenAIResponsesReplies(),
    AnthropicReplies(),
    GeminiReplies(),
)

REPLIES: dict[str, ReplyDialect] = {replies.api: replies for replies in _REPLIES}
"""Writers of replies by their API."""


class ScriptedApp:
    """The ASGI application. Its event `closing` ends stalled and held replies when the server stops."""

    def __init__(self, chooser: Chooser, log: CallLog, models: tuple[str, ...]) -> None:
        """Make it.

        Args:
            chooser: Chooses the replies.
            log: Receives every request.
            models: Names in the model list.
        """
        self.chooser = chooser
        self.log = log
        self.models = models
        self.closing = asyncio.Event()
        self.holds: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        methods = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]
        self.asgi = Starlette(routes=[Route("/{path:path}", self.answer, methods=methods)])

    async def answer(self, http: Request) -> Response:
        """Record any request on its arrival, and return its response."""
        raw = await http.body()
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode("utf-8", "replace")
        headers = {name.lower(): value for name, value in http.headers.items()}
        call = self.log.arrive(http.method, http.url.path, http.url.query, headers, body)
        dialect = find_dialect(http.url.path) if http.method == "POST" else None
        return self._other(call) if dialect is None else await self._model_call(http, call, dialect)

    async def _model_call(self, http: Request, call: ReceivedCall, dialect: Dialect) -> Response:
        """Return the response to a model call: the chosen reply, or status 400 for a body that isn't of the dialect."""
        replies = REPLIES[dialect.api]
        problem = _problem(dialect, call)
        if problem is not None:
            wrong = HTTPError(status=400, message=f"scripted model: not a {replies.name} request: {problem}")
            return self._plain(call, replies.error(wrong), 400)
        parsed = dialect.parse_request(call.path, call.body)
        request = ModelRequest(
            dialect=replies.name,
            model=parsed.model or "",
            stream=parsed.stream,
            system=parsed.system,
            messages=tuple(dialect.messages(call.body)),
            tools=tuple(dialect.tools(call.body)),
            body=call.body,
            query=dict(http.query_params),
            headers=call.headers,
        )
        choice = await self.chooser.choose(request)
        try:
            concrete = _make_reply(choice, call)
        except NoSuchToolError as error:
            choice = unanswered(choice.request, str(error))
            concrete = _make_reply(choice, call)
        self.log.record_choice(call, choice.label, choice.request)
        return Delivery(self, call, replies, concrete, choice.label)

    def _other(self, call: ReceivedCall) -> Response:
        """Return the response to a request that calls no model: model list, token count, health check; else 404."""
        path = call.path.rstrip("/")
        if call.method in ("GET", "HEAD") and path.endswith("/models"):
            return self._plain(call, _model_list(self.models))
        if call.method == "GET" and "/models/" in path:
            return self._plain(call, _model(path.rpartition("/models/")[2]))
        if path.endswith(("/count_tokens", ":countTokens")):
            tokens = len(json.dumps(call.body)) // 4
            return self._plain(call, {"input_tokens": tokens, "totalTokens": tokens})
        if not path:
            return self._plain(call, {})
        error = {"message": f"scripted model: nothing is at {call.path}", "type": "not_found_error"}
        return self._plain(call, {"type": "error", "error": error}, 404)

    def _plain(self, call: ReceivedCall, body: Any, status: int = 200) -> Response:
        """Return a JSON response, and record the request as ended."""
        self.log.record_choice(call, str(status))
        self.log.end(call, client_left=False)
        return JSONResponse(body, status)


class Delivery(Response):
    """Response that sends one reply, with its delays and faults."""

    def __init__(
        self, app: ScriptedApp, call: ReceivedCall, dialect: ReplyDialect, concrete: ConcreteReply, label: str
    ) -> None:
        """Make the response to a call. label: see `ReplyChoice.label`; it is sent as the header `x-scripted-reply`."""
        super().__init__(status_code=concrete.reply.error.status if concrete.reply.error else 200)
        self.app, self.call, self.dialect, self.concrete, self.reply = app, call, dialect, concrete, concrete.reply
        self.label = label
        self._gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply until it or the connection ends, and record the end."""
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            await self._deliver(send)
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            left = self._gone.is_set() and not self.app.closing.is_set()
            self.app.log.end(self.call, client_left=left)

    async def _watch(self, receive: Receive) -> None:
        """Set `_gone` when the client disconnects or the server stops."""
        closing = asyncio.ensure_future(self.app.closing.wait())
        message = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({closing, message}, return_when=asyncio.FIRST_COMPLETED)
            self._gone.set()
        finally:
            closing.cancel()
            message.cancel()

    async def _wait_for(self, event: asyncio.Event | None, seconds: float | None = None) -> None:
        """Wait for an event, or for so many seconds, but no longer than the client stays."""
        waits = {asyncio.ensure_future(self._gone.wait())}
        if event is not None:
            waits.add(asyncio.ensure_future(event.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _deliver(self, send: Send) -> None:
        """Wait as the reply says, and send it: as an error, as a stream, or whole."""
        if self.reply.hold is not None:
            await self._wait_for(self.app.holds[self.reply.hold])
        if self.reply.delay:
            await self._wait_for(None, self.reply.delay)
        if self.reply.error is not None:
            error = self.reply.error
            wait = [("retry-after", f"{error.retry_after:g}")] if error.retry_after is not None else []
            await self._start(send, "application/json", *wait)
            await send({"type": "http.response.body", "body": json.dumps(self.dialect.error(error)).encode()})
        elif self.concrete.request.stream:
            await self._send_stream(send)
        else:
            await self._send_whole(send)

    async def _start(self, send: Send, media_type: str, *more: tuple[str, str]) -> None:
        """Send the status and the headers, of which `more` are additional ones."""
        headers = [("content-type", media_type), ("x-scripted-reply", self.label), *more]
        headers.append(("request-id", f"req_{self.concrete.id}"))
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status_code, "headers": encoded})

    async def _send_stream(self, send: Send) -> None:
        """Send the reply as a stream of events, with its fault after some of them."""
        fault = self.reply.fault
        await self._start(send, self.dialect.media_type(self.concrete.request), ("cache-control", "no-cache"))
        for count, text in enumerate(self.dialect.events(self.concrete)):
            if fault is not None and count == fault.after:
                return await self._inject_fault(send)
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            if self.reply.pace:
                await self._wait_for(None, self.reply.pace)
            if self._gone.is_set():
                return None
        if fault is not None:
            return await self._inject_fault(send)
        return await send({"type": "http.response.body", "body": b""})

    async def _send_whole(self, send: Send) -> None:
        """Send the reply as one JSON document, or its fault in place of it."""
        fault = self.reply.fault
        body = json.dumps(self.dialect.whole(self.concrete), ensure_ascii=False).encode()
        if fault is not None and fault.kind == "stall":
            return await self._inject_fault(send)
        await self._start(send, "application/json")
        if fault is not None:
            if fault.kind == "truncate":
                await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            return await self._inject_fault(send)
        return await send({"type": "http.response.body", "body": body})

    async def _inject_fault(self, send: Send) -> None:
        """Carry out the fault of the reply. The server then closes the connection, as the response isn't complete."""
        fault = self.reply.fault
        assert fault is not None
        if fault.kind == "stall":
            await self._wait_for(None)
        elif fault.kind == "garbage":
            await send({"type": "http.response.body", "body": fault.text.encode()})


def _problem(dialect: Dialect, call: ReceivedCall) -> str | None:
    """Return why a body isn't of a dialect; None if it is."""
    body = call.body
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if dialect.parse_target(call.path, body)[0] is None:
        return "it names no model"
    given = body.get(dialect.conversation)
    is_text = dialect.api == "openai-responses" and (given is None or isinstance(given, str))
    if is_text or (isinstance(given, list) and all(isinstance(item, dict) for item in given)):
        return None
    return f"`{dialect.conversation}` is not a list of objects"


async def _disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _make_reply(choice: ReplyChoice, call: ReceivedCall) -> ConcreteReply:
    """Translate the tool calls of a choice. Their ids, unique in the server, contain the request's index."""
    reply: Reply = choice.reply
    calls = tuple(
        translate_call(use, choice.request, f"call_{call.index:04d}_{number}") for number, use in enumerate(reply.tools)
    )
    return ConcreteReply(f"scripted{call.index:04d}", choice.request, reply, calls, int(time.time()))


def _model(name: str) -> dict[str, Any]:
    """Return an entry of the model list that clients of every dialect can read."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "scripted"}
    anthropic = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    gemini = {
        "name": f"models/{name}",
        "displayName": name,
        "version": "1",
        "inputTokenLimit": 1_000_000,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    return {**openai, **anthropic, **gemini}


def _model_list(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the model list, in a form that clients of every dialect can read."""
    models = [_model(name) for name in names]
    paging = {"has_more": False, "first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return {"object": "list", "data": models, **paging, "models": models}
