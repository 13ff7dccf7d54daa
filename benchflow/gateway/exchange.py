"""One call from its first byte to its last: its record, its limits, its way to the upstream and back."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict

from benchflow.contracts.gateway import CallError, CallUsage
from benchflow.errors import StoreError
from benchflow.gateway import prices
from benchflow.gateway.allowed_requests import Forwarding
from benchflow.gateway.answer import ParsedAnswer, RecordedResponse, parse_answer, plain_headers
from benchflow.gateway.budget import estimate_usage, is_plausible
from benchflow.gateway.call_record import TOKEN_COUNT, CallRedactor, body_member, line, response_member
from benchflow.gateway.hook import Diverged, Recorded
from benchflow.gateway.key_cutter import key_forms
from benchflow.gateway.memory_budget import LARGE, RESPONSE_LIMIT, Capacity, Reservation
from benchflow.gateway.plain_body import PlainBody, UnpackingError
from benchflow.gateway.request_body import BodyError, ReceivedRequest, parse_received, receive_body, reserved_size
from benchflow.gateway.rollouts import RolloutCalls
from benchflow.gateway.sampling import changes_calls, set_sampling
from benchflow.gateway.surcharges import find_surcharge
from benchflow.gateway.upstream import (
    Attempts,
    NoAnswerError,
    RetryContext,
    Upstream,
    redirect_target,
    upstream_headers,
    upstream_url,
)
from benchflow.llm_apis import DIALECTS, Dialect, ParsedResponse, read_json
from benchflow.llm_apis.side_calls import side_reason
from benchflow.llm_apis.value_counts import MAX_VALUES, AnswerValues, count_values
from benchflow.trajectories.journal import format_timestamp

ERROR_LIMIT = 16 * 1024 * 1024
"""Approximate maximum of bytes of an error's body."""

RECORD_RETRY_SEC = 0.5
"""Seconds between two attempts to write to a record whose disk is full or unavailable."""

_ENCODINGS = ("Transfer-Encoding", "Content-Encoding")

_STATUS = {"stalled": 504, "missing_secret": 401, "unreadable": 400, "unpriced": 400}
"""HTTP status that the agent gets for an error of the gateway, where the dialect does not decide."""

log = structlog.get_logger("benchflow.gateway")

Key = tuple[str, str]
T = TypeVar("T")


class Exchange:
    """One request of a known rollout, and its response.

    It runs as a task of its own, because it may outlive the agent's connection: a model's output is billed even if the
    agent has left, and endpoints report usage last. An agent that leaves early would be charged for the output that it
    has received, but not for the reasoning that it has not. So the rest is read, for `stall_sec` at most, while the
    call keeps its slot and memory. The record's response is still what the agent received.
    """

    def __init__(
        self, request: web.BaseRequest, rollout: RolloutCalls, forwarding: Forwarding, key: Key | None
    ) -> None:
        """Make it. `forwarding`: how it is forwarded. `key`: name and value of the real key; None without one."""
        self._request, self._rollout, self._forwarding, self._key = request, rollout, forwarding, key
        # None for a request that is no generation call of the dialect.
        self._dialect = DIALECTS[rollout.registration.api] if forwarding.is_generation else None
        self._forms = key_forms(*(key or ("", "")))
        self._began = time.monotonic()
        self._ts, self._attribution = format_timestamp(), rollout.attribution
        self._id = uuid.uuid4().hex
        self._redact = CallRedactor(rollout.registration, key)
        self._received = ReceivedRequest()
        self._side: str | None = None
        self._answer = RecordedResponse(request, self._began)
        self._attempts = Attempts(self._began)
        self._upstream_first_byte: float | None = None
        self._source = "live"
        self._counted = False
        self._stopped = self._is_ending = False
        self._is_held = False
        self._work: asyncio.Task[web.StreamResponse] | None = None
        self._attended = contextlib.ExitStack()
        self._has_left = False
        self._is_at_upstream = self._is_finishing = False
        self._upstream_status: int | None = None
        self._undelivered = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, upstream: Upstream, capacity: Capacity, on_end: Callable[[], None]) -> web.StreamResponse:
        """Run the exchange and return the response. `on_end` is called at its end, perhaps after the agent has left."""
        self._work = asyncio.create_task(self._run(upstream, capacity))
        self._work.add_done_callback(lambda _: on_end())
        try:
            return await asyncio.shield(self._work)
        except asyncio.CancelledError:
            self._leave()
            raise

    async def _run(self, upstream: Upstream, capacity: Capacity) -> web.StreamResponse:
        """Wait for admission, then receive the request and carry it out.

        The call is in flight from its admission on. The body is received once only memory for it is to be waited for:
        waiting requests hold none.
        """
        with self._mark_held():
            await self._rollout.wait_for_admission()
        with self._attended:
            self._attended.enter_context(self._rollout.count_in_flight())
            async with self._rollout.slot():
                try:
                    with self._mark_held():
                        size = await self._on_disk(self._rollout.record.size)
                except StoreError as error:
                    return self._refuse(503, CallError(kind="not_recorded", message=f"no record: {error.message}"))
                if size >= self._rollout.registration.record_limit_bytes:
                    # Nothing more is written, not even this refusal: agents could fill the disk.
                    self._rollout.failure = "the record of model calls is full"
                    full = CallError(kind="record_full", message="the rollout's record of model calls is full")
                    return self._refuse(self._registered_dialect.refused, full)
                if not self._rollout.meter.can_send_bodies():
                    return await self._close_unread()
                holder = self._rollout.registration.id
                try:
                    async with capacity.requests.reserved(holder, reserved_size(self._request)) as retry_context:
                        body = await receive_body(self._request)
                        self._received = await parse_received(
                            self._request, body, self._forwarding, self._dialect, capacity
                        )
                        retry_context.shrink(self._received.size)
                        other = TOKEN_COUNT if self._forwarding.counts_as == "token_count" else "additional"
                        agent = self._rollout.registration.agent
                        self._side = side_reason(agent, self._received.parsed) if self._dialect is not None else other
                        async with capacity.answers.reserved(holder, 0) as answering:
                            return await self._carry_out(upstream, capacity, answering)
                except BodyError as error:
                    self._rollout.meter.refuse_body()
                    return self._refuse(error.status, CallError(kind=error.kind, message=error.message))

    async def _close_unread(self) -> web.StreamResponse:
        """Refuse a request and close its connection: aiohttp would receive the body only to discard it."""
        self._rollout.refuse(self._request.method, self._forwarding.path)
        message = "the rollout has sent too many requests that cannot be read"
        response = self._refuse(400, CallError(kind="too_many", message=message))
        with contextlib.suppress(ConnectionError):
            await response.prepare(self._request)
            await response.write_eof()
        self._answer.break_off()
        return response

    def stop(self) -> None:
        """Note that the gateway stops, and cut off a call that is still held: its agent asks the next gateway."""
        self._stopped = True
        if self._is_held:
            self._cut_off()

    @contextlib.contextmanager
    def _mark_held(self) -> Iterator[None]:
        """Mark the call as held: so far only the agent knows of it."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    async def end(self) -> None:
        """Cut the exchange off, and wait until it is recorded, unless that is impossible."""
        self._is_ending = True
        self._cut_off()
        if self._work is not None:
            await asyncio.wait([self._work])

    def _cut_off(self) -> None:
        # The task records what is known of the call when it is cancelled.
        if self._work is not None and not self._is_finishing:
            self._work.cancel()

    def _leave(self) -> None:
        """Handle that the agent has left: read on if the endpoint has yet to report usage, else cut the call off."""
        if self._has_left or self._is_finishing:
            return
        # A call that ends with the gateway may be repeated by its agent.
        self._has_left = not self._stopped
        is_asking = self._is_at_upstream and self._counted and not self._attempts.is_waiting
        if self._stopped or not is_asking or not self._expect_usage() or not self._rollout.read_on(self._cut_off):
            self._cut_off()
            return
        self._attempts.is_last = True
        self._timer = asyncio.get_running_loop().call_later(self._rollout.registration.stall_sec, self._cut_off)
        # The agent's turn does not wait for the rest of the call.
        self._attended.close()

    def _expect_usage(self) -> bool:
        """Return whether the response has not reported its usage yet; if so, count an estimate until it does."""
        read = (
            self._read_answer()
            if len(self._answer.body) < LARGE
            else ParsedAnswer(ParsedResponse(), ParsedResponse(), 0)
        )
        if read.sent.usage is not None and read.sent.finish is not None:
            return False
        expected = self._add_cost(self._estimate_usage(read.sent.usage, read.output_chars), read.sent.model)
        if expected is not None:
            self._rollout.meter.expect(self._id, expected)
        return True

    async def _carry_out(self, upstream: Upstream, capacity: Capacity, memory: Reservation) -> web.StreamResponse:
        """Record a received request, then replay it, refuse it or forward it, and record the response."""
        head = self._make_head()
        replayed = await self._replay(head)
        await self._compare_prefix(head, "replay" if isinstance(replayed, Recorded) else "live")
        refusal = self._find_refusal(replayed)
        body = self._received.sent
        if refusal is None and not isinstance(replayed, Recorded):
            body, head["sampling_applied"] = self._apply_sampling()
        # The document takes many times the memory of its text, and the answer may take minutes.
        self._received.document = None
        head["source"] = self._source = "replay" if isinstance(replayed, Recorded) else "live"
        # An agent can repeat a call that a limit forbids any number of times, with bodies of any size.
        is_forbidden = refusal is not None and refusal.kind in ("budget_exhausted", "too_many", "unpriced")
        try:
            with self._mark_held():
                member = body_member(None if is_forbidden else self._received.read, is_json=self._received.is_json)
                await self._append(head, member)
        except StoreError as error:
            failed = CallError(kind="not_recorded", message=f"the call cannot be recorded: {error.message}")
            return self._refuse(503, failed)
        self._rollout.count_request()
        if refusal is None and not isinstance(replayed, Recorded):
            # Other calls may have reached the limit while this one waited for the disk.
            refusal = self._check_limits()
        try:
            if refusal is not None:
                return self._refuse(_STATUS.get(refusal.kind, self._registered_dialect.refused), refusal)
            if isinstance(replayed, Recorded):
                return self._answer.whole(replayed.status, replayed.headers, replayed.body)
            return await self._send_upstream(upstream, body, memory)
        except asyncio.CancelledError:
            if self._stopped and not self._has_left:
                self._answer.error = CallError(kind="gateway_stopped", message="the gateway was ended during the call")
            else:
                self._answer.error = CallError(kind="client_closed", message="the agent closed the connection")
            raise
        finally:
            self._is_finishing = True
            self._rollout.last_received.pop(self._id, None)
            self._rollout.note_read(self._cut_off)
            if self._timer is not None:
                self._timer.cancel()
            await self._finish(capacity)

    # --- before it goes out

    def _make_head(self) -> dict[str, Any]:
        return {
            "type": "request",
            "id": self._id,
            "seq": self._rollout.take_seq(),
            "ts": self._ts,
            "node": self._attribution.node,
            "role": self._attribution.role,
            "turn": self._attribution.turn,
            "side": self._side is not None,
            "side_reason": self._side,
            "api": self._dialect.api if self._dialect is not None else "other",
            "method": self._request.method,
            "path": self._forwarding.path,
            "model": self._received.parsed.model,
            "stream": self._received.parsed.stream,
            "sampling_applied": None,
            "source": "live",
        }

    async def _replay(self, head: Mapping[str, Any]) -> Recorded | Diverged | None:
        """Return the replay's outcome for the call; None if it goes live."""
        rollout = self._rollout
        if self._dialect is None or rollout.replayer is None or rollout.live:
            return None
        answer = await rollout.replayer.answer(self._redact_request(head), self._received.sent)
        if answer is None:
            rollout.live = True
        settings = rollout.registration.replay
        strict = settings is not None and settings.strict
        return None if isinstance(answer, Diverged) and not strict else answer

    async def _compare_prefix(self, head: Mapping[str, Any], source: str) -> None:
        """Compare the first call of a resumed session with its parent's last. The call goes on in any case."""
        prefix = self._rollout.prefix
        if prefix is not None and prefix.is_due(source) and self._dialect is not None and self._side is None:
            await prefix.check_first(self._redact_request(head))

    def _redact_request(self, head: Mapping[str, Any]) -> Any:
        """Return the request line as it will be in the record."""
        text = self._redact.line(line(head, body_member(self._received.read, is_json=self._received.is_json)))
        return read_json(text.encode("utf-8", "replace"))

    def _find_refusal(self, replayed: Recorded | Diverged | None) -> CallError | None:
        """Return why the call is refused; None if it is made."""
        registration = self._rollout.registration
        if self._received.problem is not None:
            self._rollout.meter.refuse_body()
            return self._received.problem
        if isinstance(replayed, Diverged):
            return CallError(kind="replay_diverged", message=replayed.divergence.message)
        if isinstance(replayed, Recorded):
            return None
        if registration.credentials and self._key is None:
            names = " or ".join(registration.credentials)
            return CallError(kind="missing_secret", message=f"{names} is not set where the gateway runs")
        if self._forwarding.counts_as != "token_count" and registration.limits.cost_usd is not None:
            # This does not end the rollout: the agent may ask another model.
            unpriced = self._find_unpriced()
            if unpriced is not None:
                self._rollout.refuse(self._request.method, self._forwarding.path, unpriced)
                named = repr(unpriced[:100]) if unpriced else "a model that the request does not name"
                message = f"the rollout's cost is limited, and the price of {named} is not known"
                return CallError(kind="unpriced", message=message)
        return self._check_limits()

    def _check_limits(self) -> CallError | None:
        """Return why a limit of the rollout forbids another call of this kind; None if none does."""
        if self._forwarding.counts_as == "token_count":
            return self._check_token_counts()
        limit = self._rollout.meter.admit()
        if limit is not None:
            return CallError(kind="budget_exhausted", message=f"the rollout's limit is reached: {limit}")
        return None

    def _find_unpriced(self) -> str | None:
        """Return the part of the request whose price is unknown, the model or an extra; None if there is none.

        It is empty where the request names no model, since the endpoint may choose any. A registration's additional
        requests are unpriced, too: no dialect reports what they cost.
        """
        model = self._received.parsed.model or ""
        if not prices.has_price(model) or self._dialect is None or self._received.document is None:
            return model
        return find_surcharge(self._dialect.api, self._received.document)

    def _check_token_counts(self) -> CallError | None:
        """Return why a token count is refused; None if it is made. A refusal ends no rollout: agents can do without."""
        limit = self._rollout.meter.find_reached_limit()
        if limit is not None:
            return CallError(kind="budget_exhausted", message=f"the rollout's limit is reached: {limit}")
        if not self._rollout.meter.can_count_tokens():
            return CallError(kind="too_many", message="the rollout has counted tokens too often")
        return None

    def _apply_sampling(self) -> tuple[bytes, dict[str, Any] | None]:
        """Return the body with the rollout's sampling parameters, and the changed values; None if nothing changed."""
        registration = self._rollout.registration
        if self._dialect is None or self._received.document is None or not changes_calls(registration):
            return self._received.sent, None
        return set_sampling(registration, self._dialect, self._received.document) or (self._received.sent, None)

    # --- the upstream

    @property
    def _model(self) -> str:
        return self._received.parsed.model or self._rollout.registration.model or ""

    async def _send_upstream(self, upstream: Upstream, body: bytes, memory: Reservation) -> web.StreamResponse:
        """Forward the call to the upstream, and return the agent's response."""
        registration = self._rollout.registration
        if self._forwarding.counts_as == "token_count":
            self._rollout.meter.count_tokens()
        else:
            self._rollout.meter.begin(side=self._side is not None)
            self._counted = True
        headers = upstream_headers(self._request.headers, registration, self._key)
        if self._received.is_json:
            # A body that was read as JSON is forwarded unpacked.
            headers.popall("Content-Encoding", None)
        url = upstream_url(registration, self._forwarding.path)
        self._rollout.last_received[self._id] = time.monotonic()
        self._is_at_upstream = True
        try:
            retry_context = RetryContext(
                self._rollout.outage, self._forms.cover_text, self._model if self._dialect else None
            )
            response = await upstream.ask(
                registration, self._request.method, url, headers, body, self._attempts, retry_context
            )
        except NoAnswerError as error:
            failed = CallError(kind=error.kind, message=f"{url.origin()}: {error.message}")
            return self._refuse(_STATUS.get(error.kind, 502), failed)
        self._upstream_status = response.status
        try:
            if not 200 <= response.status < 300 and response.status < 400:
                target = redirect_target(response, self._forms.cover_text) or "another address"
                return self._refuse_unusable(f"answered with {response.status}, which leads to {target}: name that one")
            # There may be several headers of each name.
            transfer, packed = (", ".join(response.headers.getall(name, ())) for name in _ENCODINGS)
            if transfer.strip().lower() not in ("", "chunked"):
                return self._refuse_unusable("packed its answer in a way that nobody asked for")
            try:
                plain = PlainBody(packed, self._forms, RESPONSE_LIMIT)
            except UnpackingError as error:
                return self._refuse_unusable(f"cannot be understood: {error}")
            headers = plain_headers(response.headers, self._forms, is_unpacked=plain.is_packed)
            if response.status >= 400:
                return await self._forward_error(response, headers, plain)
            return await self._forward(response, headers, plain, memory)
        finally:
            self._is_at_upstream = False
            response.close()

    def _refuse_unusable(self, what: str) -> web.StreamResponse:
        return self._refuse(502, CallError(kind="unusable", message=f"the endpoint {what}"))

    async def _forward(
        self, response: aiohttp.ClientResponse, headers: CIMultiDict[str], plain: PlainBody, memory: Reservation
    ) -> web.StreamResponse:
        """Forward a response piece by piece."""
        is_known = "Transfer-Encoding" not in response.headers and not plain.is_packed
        length = response.content_length if is_known else None
        # The upstream's reason phrase is not forwarded: an endpoint may repeat the key in it. The head of a packed
        # answer waits for the first bytes, which may show that it is not packed as it says.
        values = AnswerValues(headers.get("Content-Type", ""))
        if not plain.is_packed:
            await self._begin(response.status, headers, length)
        while True:
            try:
                data = await response.content.readany()
            except aiohttp.SocketTimeoutError:
                seconds = self._rollout.registration.stall_sec
                return self._break_off("stalled", f"nothing came for {seconds:g} s")
            except aiohttp.ClientError as error:
                return self._break_off("truncated", f"the upstream closed the connection: {type(error).__name__}")
            try:
                passing = plain.feed(data) if data else plain.end()
            except UnpackingError as error:
                return self._break_off("unusable", str(error))
            # Blanks only keep a connection open.
            if data and not data.isspace():
                self._rollout.last_received[self._id] = time.monotonic()
                self._note_first_byte()
            size = len(self._answer.body) + len(self._undelivered) + len(passing)
            if size > RESPONSE_LIMIT or not memory.grow(len(passing)):
                return self._break_off("too_large", f"the answer has over {RESPONSE_LIMIT} bytes, or memory is short")
            if not values.add(passing):
                return self._break_off("too_many_values", "the answer has too many values to be read")
            if self._answer.status is None and (passing or not data):
                await self._begin(response.status, headers, length)
            if passing:
                await self._deliver(passing)
            if not data:
                return self._answer.response
            # `readany` and `write` do not suspend while an endpoint is faster than this loop: let other calls run.
            await asyncio.sleep(0)

    async def _begin(self, status: int, headers: CIMultiDict[str], length: int | None) -> None:
        if not self._has_left:
            await self._send(self._answer.begin(status, headers, length))

    async def _deliver(self, data: bytes) -> None:
        if self._has_left:
            self._undelivered += data
        else:
            await self._send(self._answer.write(data))

    async def _send(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except ConnectionError:
            self._leave()
            # If `_leave` has cancelled this task, the cancellation is raised here.
            await asyncio.sleep(0)

    def _break_off(self, kind: str, message: str) -> web.StreamResponse:
        """End a response that cannot be forwarded any further: an error, or a closed connection if it has begun."""
        if self._has_left:
            return self._answer.response
        if self._answer.status is None:
            return self._refuse_unusable(f"cannot be understood: {message}")
        self._answer.error = CallError(kind=kind, message=message)
        self._answer.break_off()
        return self._answer.response

    async def _forward_error(
        self, response: aiohttp.ClientResponse, headers: CIMultiDict[str], plain: PlainBody
    ) -> web.StreamResponse:
        """Forward an error response, except for the key, which some endpoints repeat in it."""
        try:
            body = b""
            while len(body) < ERROR_LIMIT and (data := await response.content.readany()):
                body += plain.feed(data)
            body += plain.end()
        except UnpackingError as error:
            return self._refuse_unusable(f"cannot be understood: {error}")
        except aiohttp.ClientError as error:
            failed = CallError(kind="truncated", message=f"the upstream closed the connection: {type(error).__name__}")
            return self._refuse(502, failed)
        if count_values(body) > MAX_VALUES:
            return self._refuse_unusable("has too many values in its error")
        if self._has_left:
            return self._answer.response
        self._note_first_byte()
        self._answer.error = CallError(kind="upstream_status", message=f"the upstream answered with {response.status}")
        return self._answer.whole(response.status, headers, body)

    def _note_first_byte(self) -> None:
        if self._upstream_first_byte is None:
            self._upstream_first_byte = round(1000 * (time.monotonic() - self._attempts.sent), 3)

    # --- when it is over

    @property
    def _registered_dialect(self) -> Dialect:
        return DIALECTS[self._rollout.registration.api]

    def _refuse(self, status: int, error: CallError) -> web.StreamResponse:
        if self._has_left:
            return self._answer.response
        return self._answer.refuse(self._registered_dialect, status, error)

    async def _finish(self, capacity: Capacity) -> None:
        """Count the usage and record the response. The end of the call waits for both."""
        read = await capacity.parse(len(self._answer.body) + len(self._undelivered), self._read_answer)
        body = bytes(self._answer.body)
        head = self._conclude(read)
        try:
            await self._append(head, response_member(body, compressed=bool(self._answer.encoding)))
        except StoreError as error:
            log.error("an answer is not recorded", rollout=self._rollout.registration.id, error=str(error))

    def _read_answer(self) -> ParsedAnswer:
        """Parse the endpoint's response so far, including the part that no agent received."""
        answer = self._answer
        return parse_answer(bytes(answer.body + self._undelivered), answer.delivered, answer.encoding, self._dialect)

    def _conclude(self, read: ParsedAnswer) -> dict[str, Any]:
        """Count the usage, and return the head of the response line."""
        answer, answered = self._answer, read.sent
        if self._has_left:
            answer.error = CallError(kind="client_closed", message="the agent closed the connection")
        has_left = answer.error is not None and answer.error.kind == "client_closed"
        is_whole = answer.status is not None and answer.status < 300
        reported = answered.usage
        is_at_end = answered.finish is not None or answer.error is None
        is_reported = reported is not None and is_plausible(reported) and is_at_end
        usage = reported if is_reported else self._estimate_usage(reported, read.output_chars)
        usage = self._add_cost(usage, answered.model)
        # Some agents close the connection as soon as they have read the end, before the upstream does.
        if is_whole and has_left and read.delivered.finish is not None:
            answer.error = None
        if self._counted:
            self._rollout.meter.end(usage, answered=is_whole and not has_left, call=self._id)
        elif self._source == "replay":
            self._rollout.meter.replay()
        if self._counted and is_whole and answer.error is None and answered.finish is None:
            answer.error = CallError(kind="incomplete", message="the answer has no end that its dialect knows")
        # Except for the usage, the line describes the response that the agent received.
        recorded = read.delivered if self._undelivered else answered
        return {
            "type": "response",
            "id": self._id,
            "ts": format_timestamp(),
            "status": answer.status,
            "headers": answer.headers,
            "usage": usage.model_dump() if usage is not None else None,
            "finish_reason": recorded.finish,
            "token_ids": recorded.token_ids,
            "logprobs": recorded.logprobs,
            "error": answer.error.model_dump() if answer.error is not None else None,
            "retries": [retry.model_dump() for retry in self._attempts.retries],
            "is_waiting": self._attempts.is_waiting,
            "timing": answer.timing(self._upstream_first_byte).model_dump(),
        }

    def _estimate_usage(self, reported: CallUsage | None, output_chars: int) -> CallUsage | None:
        """Return the reported usage, raised to an estimate if a model may have read the request."""
        if not self._counted:
            return reported
        if self._upstream_status is not None:
            is_free = not 200 <= self._upstream_status < 300
        else:
            # No model has read anything if the gateway answered itself, or the call waits for a retry.
            is_free = self._answer.status is not None or self._attempts.is_waiting
        if is_free:
            return reported
        return estimate_usage(reported, self._received.size, output_chars)

    def _add_cost(self, usage: CallUsage | None, answering: str | None) -> CallUsage | None:
        """Return the usage with its cost: of the requested model, or of the answering one if it is dearer."""
        if usage is None:
            return None
        cost = prices.cost(self._received.parsed.model or self._rollout.registration.model, usage)
        if cost is not None:
            cost = max(cost, prices.cost(answering, usage) or 0.0)
        return usage.model_copy(update={"cost_usd": cost})

    async def _append(self, head: Mapping[str, Any], last: str) -> None:
        """Append a line to the record: the members of `head`, then the last one."""
        text = self._redact.line(line(head, last))
        await self._on_disk(lambda: self._rollout.record.append(text))

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Return the result of work on the record, retried while its disk is full or unavailable.

        Raises `StoreError` for a permanent failure, and for any once the rollout or the gateway ends.
        """
        while True:
            try:
                return work()
            except StoreError as error:
                if not error.is_outage or self._is_ending or self._rollout.is_over:
                    self._rollout.failure = str(error)
                    raise
            began = time.monotonic()
            await asyncio.sleep(RECORD_RETRY_SEC)
            if not self._has_left:
                self._rollout.blockage.add(began)
