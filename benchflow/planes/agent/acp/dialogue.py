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
from benchflow.planes.agent.acp.events import Reading, omit_content, parse_noise, truncate
from benchflow.planes.agent.acp.wire import SLOW, OutputLine, Wire
from benchflow.planes.agent.bounds import MAX_LINE, MAX_REQUESTS, MAX_SENT
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.turn_limits import DEFAULT_TIMEOUTS, AgentTimeouts, LimitClock, note_stop, read_stop
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

    def emit(self, lines: list[Line]) -> None:
        self.take(lines)
        self.lines += len(lines)


class Dialogue:
    """The client's side of the communication with one agent process."""

    def __init__(self, wire: Wire, host: AgentRequestHandler, timeouts: AgentTimeouts = DEFAULT_TIMEOUTS) -> None:
        """Make it. host: serves the agent's requests; timeouts: timeouts besides those of turns."""
        self._wire = wire
        self._host = host
        self.timeouts = timeouts

    async def call(
        self, request: str, method: str, params: Message, limits: TurnLimits, *, quiet: float = 0.0
    ) -> Message:
        """Send a request, unless it was sent, and return its result. Output until then belongs to no turn.

        Output in the `quiet` seconds after the answer is consumed, too. Raise `ACPError` for a refusal,
        `AgentExitError` if the agent exits first, `AgentTimeoutError` at a limit.
        """
        exchange = _Exchange(request, lambda lines: None)
        started, offset = self._send_once(request, method, params)
        ended_by = await self._listen(exchange, offset, started, limits, quiet=quiet)
        if ended_by is not None:
            raise AgentTimeoutError(f"the agent did not answer {method} in time", log_tail=self._wire.read_log_tail())
        assert exchange.answer is not None
        return self._parse_result(exchange.answer, method)

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
        started, offset = self._send_once(request, "session/prompt", params)
        try:
            return await self._follow_turn(exchange, session, started, offset, limits, kill, skip)
        except ACPError as error:
            # The agent's log may explain the error a moment later.
            give_up_at = time.monotonic() + self.timeouts.last_log
            while (tail := self._wire.read_log_tail()) is None and time.monotonic() < give_up_at:
                await asyncio.sleep(SLOW)
            error.log_tail = tail
            raise

    async def _follow_turn(
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
        progress = self._wire.notes.read(f"progress-{request}")
        if progress is not None and skip(progress["lines"]):
            offset, exchange.lines = progress["offset"], progress["lines"]
            exchange.reading.restore(progress["reading"])
        stop = await self._listen(exchange, offset, started, limits, quiet=self.timeouts.silence, session=session)
        if exchange.answer is None or (stop and "error" in exchange.answer):
            await kill()
            return EndedTurn("cancelled" if stop == "cancelled" else "timeout", exchange.reading, stop)
        result = self._parse_result(exchange.answer, "session/prompt")
        exchange.reading.read_result(result)
        return EndedTurn(str(result.get("stopReason", "end_turn")), exchange.reading, stop)

    def cancel(self, request: str) -> None:
        """Request the end of a turn: the process that runs it asks the agent to stop, then kills it."""
        note_stop(self._wire.notes, _make_stop_name(request), "cancelled")

    # --- listening -----------------------------------------------------------------------------------

    def _send_once(self, request: str, method: str, params: Message) -> tuple[float, int]:
        """Send a request once. Return the time of that, and the offset from which its answer can come."""
        mark = self._wire.notes.write_once(f"request-{request}", {"from": self._wire.position, "at": time.monotonic()})
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
        before = self._wire.output_size
        heard_at = noted_at = time.monotonic()
        attendance = Attendance(self._wire.notes.get_path(f"attended-{exchange.request}"))
        clock = LimitClock(limits, self._wire.notes, _make_stop_name(exchange.request))
        stop = read_stop(self._wire.notes, _make_stop_name(exchange.request))
        ended, asked_at = self._wire.describe_end(), time.monotonic()
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
                    await self._process_line(exchange, heard)
                    # Not held while other sessions run: it may be a long message.
                    del heard
                    # The agent was blocked while its question was answered.
                    heard_at = time.monotonic()
                    is_due = now - noted_at > self.timeouts.progress_every
                    if session is not None and is_due and not exchange.served and exchange.failure is None:
                        self._note_progress(exchange, offset)
                        noted_at = now
                    if offset <= before:
                        # Output from before this worker came is processed to its end, whatever limit is reached.
                        continue
                if exchange.answer is not None:
                    exchange.answered_at = exchange.answered_at or now
                    over_for = now - exchange.answered_at
                    if (is_silent and now - heard_at >= quiet) or over_for > self.timeouts.last_words:
                        return stop
                    continue
                if is_silent:
                    if ended is not None:
                        if stop is not None:
                            return stop
                        when = "before it had answered" if session is None else "during its turn"
                        raise AgentExitError(f"the agent ended {when}: {ended}", log_tail=self._wire.read_log_tail())
                    if now - asked_at >= SLOW:  # It costs more than all the rest of a poll.
                        ended, asked_at = self._wire.describe_end(), now
                        # `cancel` may have been called by the process that enforces the rollout's cost limit.
                        stop = stop or read_stop(self._wire.notes, _make_stop_name(exchange.request))
                    if ended is not None:
                        # Its last output may have come after the last read: read once more.
                        continue
                if exchange.served:
                    # The agent waits for the engine.
                    heard_at = now
                stop = stop or await clock.check(started, attendance, heard_at)
                if stop is not None and (session is None or now > (exchange.give_up_at or now)):
                    return stop
                if stop is not None and session is not None and exchange.give_up_at is None:
                    exchange.give_up_at = now + self.timeouts.cancel
                    self._wire.send({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
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
        self._wire.notes.write(f"progress-{exchange.request}", progress | {"reading": exchange.reading.dump()})

    async def _process_line(self, exchange: _Exchange, heard: OutputLine) -> None:
        """Process one line of output: pass it on as trajectory lines, serve its request, or keep it as the answer."""
        message = heard.message
        if message is None:
            exchange.emit([parse_noise(heard.raw, lambda what: self._make_error(f"the agent wrote {what}"))])
        elif "method" in message and "id" in message:
            await self._handle_request(exchange, message, len(heard.raw))
        elif message.get("method") == "session/update":
            exchange.emit(exchange.reading.read_update(_to_mapping(message.get("params")).get("update")))
        elif "method" in message:
            exchange.emit([{"type": "notification", "method": message["method"], "params": message.get("params")}])
        elif "id" in message and ("result" in message or "error" in message):
            if message["id"] == exchange.request:
                exchange.answer = message
            elif not self._wire.was_sent(message["id"]):
                raise self._make_error(f"the agent answered a request that was never made: {message['id']!r}")
        else:
            raise self._make_error(f"the agent wrote something that is not JSON-RPC: {truncate(heard.raw)}")

    # --- the agent's own requests --------------------------------------------------------------------

    async def _handle_request(self, exchange: _Exchange, message: Message, size: int) -> None:
        """Serve a request of the agent. size: bytes of its line."""
        if self._wire.sent.size > MAX_SENT:
            raise AgentOutputError(
                f"the agent asked for more than {MAX_SENT} bytes", log_tail=self._wire.read_log_tail()
            )
        method, params = str(message["method"]), _to_mapping(message.get("params"))
        if method in ("session/request_permission", "elicitation/create"):
            await self._ask(exchange, message["id"], method, params)
            return
        exchange.emit([{"type": "client_request", "method": method, "params": omit_content(params)}])
        if self._wire.find_answer(message["id"]) is not None:
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
        exchange.emit([{"type": kind, "params": params}])
        question = f"{exchange.request}:{request}"
        key = short_hash(question, 16)
        answered = self._wire.notes.read(f"answered-{key}")
        if answered is None:
            result, error = await self._decide(question, method, params)
            # Noted before it is sent: a worker that takes over must send the same.
            answered = self._wire.notes.write_once(f"answered-{key}", {"result": result, "error": error})
        self._wire.send({"jsonrpc": "2.0", "id": request, "result": answered["result"]})
        line: Line = {"type": kind.replace("request", "answer"), "result": answered["result"]}
        exchange.emit([line | ({"error": answered["error"]} if answered["error"] else {})])

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

    def _parse_result(self, answer: Message, method: str) -> Message:
        if "error" in answer:
            error = _to_mapping(answer["error"])
            said = f"{error.get('message', 'no reason given')} (code {error.get('code')})"
            details = error.get("data")
            more = f": {truncate(str(details).encode())}" if details else ""
            raise self._make_error(f"the agent refused {method}: {said}{more}")
        return _to_mapping(answer.get("result"))

    def _make_error(self, said: str) -> ACPError:
        return ACPError(said, log_tail=self._wire.read_log_tail())


def _to_mapping(value: Any) -> Message:
    return value if isinstance(value, dict) else {}


def _make_stop_name(request: str) -> str:
    """Return the name of the note that says why a turn is ended."""
    return f"stop-{request}"
