"""The turn driver: requests to an agent that are sent once, and its output until the answer, whichever worker waits.

Before a request is sent, the offset in the agent's output from which its answer can come is noted; during a turn, the
offset to which it was processed is noted now and then. A worker that takes over reads from there: it derives the same
lines, so that written ones can be told from missing ones.

Times are of the monotonic clock, which all processes of a host share until it is restarted: a step of the wall clock
is no timeout, nor is the time for which a laptop was suspended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchflow.contracts.agent import Line, Stop, TurnLimits, Unanswered
from benchflow.contracts.failures import typed_error
from benchflow.contracts.ids import short_hash
from benchflow.errors import ACPError, AgentExitError, AgentOutputError, AgentTimeoutError, BenchFlowError
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.wire import SLOW, Heard, Wire
from benchflow.planes.agent.bounds import MAX_LINE, MAX_REQUESTS, MAX_SENT
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.turn_limits import PATIENCE, AgentTimeouts, LimitClock, note_stop, noted_stop
from benchflow.planes.sandbox.timeouts import Attendance

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
_MAX_NOTED_CALLS = 10_000
"""Maximum tool calls of a turn whose progress is noted: each note holds all of them."""


class AgentRequestHandler(Protocol):
    """Serves the agent's own requests."""

    async def ask(self, question: str, method: str, params: Message) -> Message:
        """Answer a permission or elicitation request, and return the result. An exception is answered by *cancelled*.

        Raise `Unanswered` if the answer is not known yet. question: its id, the same in each attempt.
        """
        ...

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        """Carry out a request for a file or terminal, and return the result. Raise `RefusedError` for an error."""
        ...


class RefusedError(Exception):
    """A request of the agent that is answered by an error."""

    def __init__(self, code: int, message: str) -> None:
        """Make it of a JSON-RPC error code and message."""
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class EndedTurn:
    """A turn that has ended."""

    stop_reason: str
    """Stop reason as in ACP, or `timeout`."""

    reading: Reading
    """Counts of the turn."""

    ended_by: Stop | None = None
    """Why the engine ended the turn; None if the agent did."""


@dataclass
class _Exchange:
    """One request and the output until its answer."""

    request: str
    """Id of the request."""

    take: Callable[[list[Line]], None]
    """Callback that receives the trajectory lines."""

    reading: Reading = field(default_factory=Reading)
    """Counts of its output."""

    lines: int = 0
    """Number of lines that `take` received."""

    answer: Message | None = None
    """The answer; None before it came."""

    served: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that serve requests of the agent."""

    serving: int = 0
    """Bytes of the requests that are being served."""

    failure: BaseException | None = None
    """Why a request of the agent could not be served."""

    answered_at: float | None = None
    """When the answer was first seen."""

    give_up_at: float | None = None
    """When the agent is killed, after it was asked to stop."""

    def sink(self, lines: list[Line]) -> None:
        self.take(lines)
        self.lines += len(lines)


class Dialogue:
    """The client's side of the communication with one agent process."""

    def __init__(self, wire: Wire, host: AgentRequestHandler, patience: AgentTimeouts = PATIENCE) -> None:
        """Make it. host: serves the agent's requests; patience: timeouts besides those of turns."""
        self._wire = wire
        self._host = host
        self.patience = patience

    async def call(
        self, request: str, method: str, params: Message, limits: TurnLimits, *, quiet: float = 0.0
    ) -> Message:
        """Send a request, unless it was sent, and return its result. Output until then belongs to no turn.

        Output in the `quiet` seconds after the answer is consumed, too. Raise `ACPError` for a refusal,
        `AgentExitError` if the agent exits first, `AgentTimeoutError` at a limit.
        """
        exchange = _Exchange(request, lambda lines: None)
        started, offset = self._begin(request, method, params)
        ended_by = await self._listen(exchange, offset, started, limits, quiet=quiet)
        if ended_by is not None:
            raise AgentTimeoutError(f"the agent did not answer {method} in time", log_tail=self._wire.log_tail())
        assert exchange.answer is not None
        return self._result(exchange.answer, method)

    async def prompt(
        self,
        request: str,
        session: str,
        prompt: list[Message],
        sink: Callable[[list[Line]], None],
        limits: TurnLimits,
        kill: Callable[[], Awaitable[None]],
        *,
        reading: Reading | None = None,
        skip: Callable[[int], bool] = lambda lines: False,
    ) -> EndedTurn:
        """Run a turn to its end, or resume it. At a limit the agent is asked to stop, then killed.

        Args:
            request: Id of the request.
            session: Id of the session.
            prompt: Content blocks of the prompt.
            sink: Callback for the trajectory lines: the same in the same order after a crash.
            limits: Time limits of the turn.
            kill: Callback that kills the agent.
            reading: Object for the counts, also valid if the turn fails.
            skip: Callback that returns whether the turn's first lines, so many, are in the trajectory already.

        Raises:
            ACPError: The agent refuses the prompt, or breaks the protocol.
            AgentExitError: It exits during the turn.
            Unanswered: It waits for an answer of its user.
        """
        exchange = _Exchange(request, sink, reading if reading is not None else Reading())
        params = {"sessionId": session, "prompt": prompt}
        started, offset = self._begin(request, "session/prompt", params)
        try:
            return await self._hear_turn(exchange, session, started, offset, limits, kill, skip)
        except ACPError as error:
            # The agent's log may explain the error a moment later.
            give_up_at = time.monotonic() + self.patience.last_log
            while (tail := self._wire.log_tail()) is None and time.monotonic() < give_up_at:
                await asyncio.sleep(SLOW)
            error.log_tail = tail
            raise

    async def _hear_turn(
        self,
        exchange: _Exchange,
        session: str,
        started: float,
        offset: int,
        limits: TurnLimits,
        kill: Callable[[], Awaitable[None]],
        skip: Callable[[int], bool],
    ) -> EndedTurn:
        request = exchange.request
        progress = self._wire.notes.noted(f"progress-{request}")
        if progress is not None and skip(progress["lines"]):
            offset, exchange.lines = progress["offset"], progress["lines"]
            exchange.reading.restore(progress["reading"])
        stop = await self._listen(exchange, offset, started, limits, quiet=self.patience.silence, session=session)
        if exchange.answer is None or (stop and "error" in exchange.answer):
            await kill()
            return EndedTurn("cancelled" if stop == "cancelled" else "timeout", exchange.reading, stop)
        result = self._result(exchange.answer, "session/prompt")
        exchange.reading.end(result)
        return EndedTurn(str(result.get("stopReason", "end_turn")), exchange.reading, stop)

    def cancel(self, request: str) -> None:
        """Request the end of a turn: the process that runs it asks the agent to stop, then kills it."""
        note_stop(self._wire.notes, _stop_of(request), "cancelled")

    def log_tail(self) -> str | None:
        """Return the last lines of the agent's stderr."""
        return self._wire.log_tail()

    def _send_cancel(self, session: str) -> None:
        self._wire.send({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})

    # --- listening -----------------------------------------------------------------------------------

    def _begin(self, request: str, method: str, params: Message) -> tuple[float, int]:
        """Send a request once. Return the time of that, and the offset from which its answer can come."""
        mark = self._wire.notes.note(f"request-{request}", {"from": self._wire.position, "at": time.monotonic()})
        self._wire.send({"jsonrpc": "2.0", "id": request, "method": method, "params": params})
        return float(mark["at"]), int(mark["from"])

    async def _listen(
        self,
        exchange: _Exchange,
        offset: int,
        started: float,
        limits: TurnLimits,
        *,
        quiet: float,
        session: str | None = None,
    ) -> Stop | None:
        """Process output until the agent has answered and been silent for `quiet` seconds. Return a reached limit."""
        before = self._wire.said
        heard_at = noted_at = time.monotonic()
        attendance = Attendance(self._wire.notes.file(f"attended-{exchange.request}"))
        clock = LimitClock(limits, self._wire.notes, _stop_of(exchange.request))
        stop = noted_stop(self._wire.notes, _stop_of(exchange.request))
        ended, asked_at = self._wire.ended(), time.monotonic()
        try:
            async for heard in self._wire.follow(offset):
                if exchange.failure is not None:
                    # The agent waits for an answer: a worker that takes over reads its request again.
                    raise exchange.failure
                now = time.monotonic()
                if attendance.poll():
                    heard_at = now
                is_silent = heard is None
                if heard is not None:
                    offset = heard.end
                    await self._take(exchange, heard)
                    # Not held while other sessions run: it may be a long message.
                    del heard
                    # The agent was blocked while its question was answered.
                    heard_at = time.monotonic()
                    is_due = now - noted_at > self.patience.progress_every
                    if session is not None and is_due and not exchange.served and exchange.failure is None:
                        self._note_progress(exchange, offset)
                        noted_at = now
                    if offset <= before:
                        # Output from before this worker came is processed to its end, whatever limit is reached.
                        continue
                if exchange.answer is not None:
                    exchange.answered_at = exchange.answered_at or now
                    over_for = now - exchange.answered_at
                    if (is_silent and now - heard_at >= quiet) or over_for > self.patience.last_words:
                        return stop
                    continue
                if is_silent:
                    if ended is not None:
                        if stop is not None:
                            return stop
                        when = "before it had answered" if session is None else "during its turn"
                        raise AgentExitError(f"the agent ended {when}: {ended}", log_tail=self._wire.log_tail())
                    if now - asked_at >= SLOW:  # It costs more than all the rest of a poll.
                        ended, asked_at = self._wire.ended(), now
                        # `cancel` may have been called by the process that enforces the rollout's cost limit.
                        stop = stop or noted_stop(self._wire.notes, _stop_of(exchange.request))
                    if ended is not None:
                        # Its last output may have come after the last read: read once more.
                        continue
                if exchange.served:
                    # The agent waits for the engine.
                    heard_at = now
                stop = stop or await clock.reached(started, attendance, heard_at)
                if stop is not None and (session is None or now > (exchange.give_up_at or now)):
                    return stop
                if stop is not None and session is not None and exchange.give_up_at is None:
                    exchange.give_up_at = now + self.patience.cancel
                    self._send_cancel(session)
        except Unanswered:
            attendance.suspend()
            raise
        finally:
            if exchange.answer is not None:
                self._wire.position = offset
            for task in exchange.served:
                task.cancel()
            await asyncio.gather(*exchange.served, return_exceptions=True)
        raise AssertionError("the agent's output has no end")

    def _note_progress(self, exchange: _Exchange, offset: int) -> None:
        """Note how far the turn was processed, so that a worker that takes over need not read all of it again.

        Only if no request of the agent is unanswered, which would not be read again, and without very many tool calls,
        all of which would be written each time.
        """
        if len(exchange.reading.tool_calls) > _MAX_NOTED_CALLS:
            return
        progress = {"offset": offset, "lines": exchange.lines}
        self._wire.notes.keep(f"progress-{exchange.request}", progress | {"reading": exchange.reading.state()})

    async def _take(self, exchange: _Exchange, heard: Heard) -> None:
        """Process one line of output: pass it on as trajectory lines, serve its request, or keep it as the answer."""
        message = heard.message
        if message is None:
            exchange.sink([self._noise(heard.raw)])
        elif "method" in message and "id" in message:
            await self._request(exchange, message, len(heard.raw))
        elif message.get("method") == "session/update":
            exchange.sink(exchange.reading.lines(_mapping(message.get("params")).get("update")))
        elif "method" in message:
            exchange.sink([{"type": "notification", "method": message["method"], "params": message.get("params")}])
        elif "id" in message and ("result" in message or "error" in message):
            if message["id"] == exchange.request:
                exchange.answer = message
            elif not self._wire.was_sent(message["id"]):
                raise ACPError(
                    f"the agent answered a request that was never made: {message['id']!r}",
                    log_tail=self._wire.log_tail(),
                )
        else:
            raise ACPError(
                f"the agent wrote something that is not JSON-RPC: {_short(heard.raw)}", log_tail=self._wire.log_tail()
            )

    def _noise(self, raw: bytes) -> Line:
        """Return the trajectory line for output that is no JSON. Raise `ACPError` if it is a broken message."""
        if raw.lstrip()[:1] in (b"{", b"["):
            raise self._error(f"the agent wrote a broken message: {_short(raw)}")
        try:
            return {"type": "noise", "text": raw.decode()}
        except UnicodeDecodeError as error:
            raise ACPError(
                f"the agent wrote what is not UTF-8: {_short(raw)}", log_tail=self._wire.log_tail()
            ) from error

    # --- the agent's own requests --------------------------------------------------------------------

    async def _request(self, exchange: _Exchange, message: Message, size: int) -> None:
        """Serve a request of the agent. size: bytes of its line."""
        if self._wire.sent.size > MAX_SENT:
            raise AgentOutputError(f"the agent asked for more than {MAX_SENT} bytes", log_tail=self._wire.log_tail())
        method, params = str(message["method"]), _mapping(message.get("params"))
        if method in ("session/request_permission", "elicitation/create"):
            await self._ask(exchange, message["id"], method, params)
            return
        exchange.sink([{"type": "client_request", "method": method, "params": _shown(params)}])
        if self._wire.answer_to(message["id"]) is not None:
            return
        if len(exchange.served) >= MAX_REQUESTS or exchange.serving + size > MAX_LINE:
            refusal = {"code": INTERNAL_ERROR, "message": "too many requests at once: wait for some of the answers"}
            self._wire.send({"jsonrpc": "2.0", "id": message["id"], "error": refusal})
            return

        def end(task: asyncio.Task[None]) -> None:
            exchange.served.discard(task)
            exchange.serving -= size
            if not task.cancelled():
                exchange.failure = exchange.failure or task.exception()

        exchange.serving += size
        task = asyncio.ensure_future(self._serve(message["id"], method, params))
        exchange.served.add(task)
        task.add_done_callback(end)

    async def _ask(self, exchange: _Exchange, request: Any, method: str, params: Message) -> None:
        """Answer a permission or elicitation request, one at a time, and pass both request and answer on."""
        kind = "permission_request" if method == "session/request_permission" else "elicitation_request"
        exchange.sink([{"type": kind, "params": params}])
        question = f"{exchange.request}:{request}"
        key = short_hash(question, 16)
        answered = self._wire.notes.noted(f"answered-{key}")
        if answered is None:
            result, error = await self._decide(question, method, params)
            # Noted before it is sent: a worker that takes over must send the same.
            answered = self._wire.notes.note(f"answered-{key}", {"result": result, "error": error})
        self._wire.send({"jsonrpc": "2.0", "id": request, "result": answered["result"]})
        line: Line = {"type": kind.replace("request", "answer"), "result": answered["result"]}
        exchange.sink([line | ({"error": answered["error"]} if answered["error"] else {})])

    async def _decide(self, question: str, method: str, params: Message) -> tuple[Message, str | None]:
        """Return the result to answer a question with, and the error of the host if it failed."""
        try:
            return await self._host.ask(question, method, params), None
        except Unanswered:
            raise
        except Exception as problem:
            cancelled = {"outcome": {"outcome": "cancelled"}}
            result = cancelled if method == "session/request_permission" else {"action": "cancel"}
            return result, f"{type(problem).__name__}: {problem}"

    async def _serve(self, request: Any, method: str, params: Message) -> None:
        """Carry out a request of the agent and send the answer. Raise outages and retryable errors instead."""
        answer: Message = {"jsonrpc": "2.0", "id": request}
        try:
            answer["result"] = await self._host.serve(request, method, params)
        except RefusedError as refusal:
            answer["error"] = {"code": refusal.code, "message": refusal.message}
        except Exception as problem:
            error = typed_error(problem)
            if isinstance(error, BenchFlowError) and (error.is_outage or error.retryable):
                raise error from problem
            answer["error"] = {"code": INTERNAL_ERROR, "message": f"{type(problem).__name__}: {problem}"}
        with suppress(FileNotFoundError):
            self._wire.send(answer)

    def _result(self, answer: Message, method: str) -> Message:
        if "error" in answer:
            error = _mapping(answer["error"])
            said = f"{error.get('message', 'no reason given')} (code {error.get('code')})"
            details = error.get("data")
            more = f": {_short(str(details).encode())}" if details else ""
            raise self._error(f"the agent refused {method}: {said}{more}")
        return _mapping(answer.get("result"))

    def _error(self, said: str) -> ACPError:
        return ACPError(said, log_tail=self._wire.log_tail())


def _mapping(value: Any) -> Message:
    return value if isinstance(value, dict) else {}


def _short(raw: bytes) -> str:
    text = raw[:300].decode(errors="replace")
    return text if len(raw) <= 300 else f"{text}…"


def _shown(params: Message) -> Message:
    return {key: value for key, value in params.items() if key != "content" or len(str(value)) < 10_000}


def _stop_of(request: str) -> str:
    """Return the name of the note that says why a turn is ended."""
    return f"stop-{request}"
