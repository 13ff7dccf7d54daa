"""The model calls of one turn, read from the rollout's record: whether the endpoint served them, or failed for good.

An agent that got only errors may report anything, often success. The record outlives every process, so that any worker
that ends the turn comes to the same judgement.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchflow.gateway.call_record import parse_head
from benchflow.gateway.endpoint_errors import CallProblem, endpoint_words
from benchflow.llm_apis import Document, count_output, documents, is_answer, read_json
from benchflow.llm_apis.json_values import table, tables

MIN_PATIENCE_SEC = 30.0
"""Seconds without an answer after which an agent that leaves has given up on the endpoint. Before, it may have other
reasons: it ends, or no longer needs the answer.
"""

_OF_LIMITS = frozenset({"budget_exhausted", "replay_diverged", "too_many"})
"""Refusals of the gateway that do not concern the endpoint, and have errors of their own."""

_CONTENT = re.compile(r'"(tool_calls|refusal|reasoning)":\s*(\[\s*[^\]\s]|\{|"[^"])|"(tool_use|functionCall|\w+_call)"')
"""Content of answers besides text: tool calls, refusals, and reasoning under the names of some servers."""


_CUT_ENDS = frozenset(
    {
        *("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
        *("content_filter", "sensitive", "refusal", "safety", "recitation", "language", "blocklist", "spii"),
        *("prohibited_content", "image_safety", "malformed_function_call", "unexpected_tool_call", "pause_turn"),
    }
)
"""Finish reasons, in lower case, of answers that a limit or a filter ended, perhaps before any content."""

_FAILED_ENDS = frozenset(
    {"error", "failed", "cancelled", "abort", "aborted", "network_error", "insufficient_system_resource"}
)
"""Finish reasons, in lower case, of answers that the server could not complete."""

_GONE = frozenset({404, 405, 410})
"""Statuses by which a proxy reports that its server is gone."""


@dataclass(frozen=True)
class TurnEnd:
    """How a turn ended."""

    ended_by: Literal["agent", "idle", "wall_clock", "opening"] = "agent"
    """The agent, in whatever way, or one of the turn's limits. `opening` is no turn, but a session that the agent could
    not open.
    """
    limit_sec: float = math.inf
    """Limit that ended it, in seconds."""
    is_failed: bool = False
    """Whether the agent ended it by an error instead of a regular response."""


@dataclass(frozen=True)
class _Call:
    """A call without a response."""

    began: float
    """Time of the request, in seconds since the epoch."""
    model: str | None
    path: str
    is_side: bool


@dataclass
class _Tally:
    """Counts of main or of side calls."""

    made: int = 0
    served: int = 0
    last_served: float = -math.inf
    """Begin of the latest call that was served."""
    models: set[str | None] = field(default_factory=set)
    """Models that were served."""
    places: set[tuple[str | None, str]] = field(default_factory=set)
    """Models that were served, with the paths of their calls."""
    has_empty: bool = False
    """Whether an answer was empty."""

    problem: CallProblem | None = None
    """Problem of the last call since `last_served` that counts against the endpoint; None for none."""
    n_failed: int = 0
    """Calls since then that count against the endpoint."""
    failing_since: float = math.inf
    failed_until: float = -math.inf
    """Begin of the first of these calls, and end of the last."""
    left: list[CallProblem] = field(default_factory=list)
    """Calls since then that the agent left before they had an answer."""

    def serve(self, call: _Call) -> None:
        """Count a call that was served."""
        self.served += 1
        self.models.add(call.model)
        self.places.add((call.model, call.path))
        if call.began >= self.last_served:
            self.last_served, self.problem, self.n_failed, self.left = call.began, None, 0, []
            self.failing_since = math.inf

    def fail(self, call: _Call, problem: CallProblem, ended: float) -> None:
        """Count a call that was not served. Once others were, errors that an agent causes itself do not count."""
        is_gone = problem.status in _GONE and problem.is_of_proxy and (call.model, call.path) in self.places
        if self.served and not is_gone and (problem.is_of_request or problem.model not in self.models):
            return
        self.problem = problem
        self.n_failed += 1
        self.failing_since = min(self.failing_since, call.began)
        self.failed_until = max(self.failed_until, ended)


class TurnCalls:
    """Tracks which model calls of a turn were served. Side calls, as for titles, count only if there are no others."""

    def __init__(self, record: Path, offset: int) -> None:
        """Start at an offset of a record.

        Args:
            record: The rollout's `llm_trajectory.jsonl`, which need not exist yet.
            offset: Number of its bytes that belong to earlier turns.
        """
        self._record = record
        self._offset = offset
        self._lock = threading.Lock()
        self._open: dict[str, _Call] = {}
        self._main, self._side = _Tally(), _Tally()
        self._refused: str | None = None

    @property
    def failing_sec(self) -> float:
        """Return for how many seconds at least two main calls in a row have failed; 0 after one that was served."""
        tally = self._main
        return tally.failed_until - tally.failing_since if tally.n_failed > 1 else 0.0

    def read(self) -> None:
        """Read the lines that were appended since the last read. An incomplete line is left to the next read."""
        with self._lock, contextlib.suppress(FileNotFoundError), self._record.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                # A line that was changed by hand is skipped.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        """Read one line of the record."""
        head = parse_head(line)
        if head is not None:
            if head["api"] != "other":
                self._tally(is_side=head["side"]).made += 1
                self._open[head["id"]] = _Call(_parse_seconds(head["ts"]), head["model"], head["path"], head["side"])
            return
        response = read_json(line)
        if response["type"] == "refused":
            self._refused = self._refused or f"{response['method']} {response['path']}"
        elif (call := self._open.pop(response["id"], None)) is not None:
            self._end(call, response)

    def _tally(self, *, is_side: bool) -> _Tally:
        return self._side if is_side else self._main

    def _end(self, call: _Call, response: Mapping[str, Any]) -> None:
        """Count a call that has ended as served, failed, empty or left."""
        tally = self._tally(is_side=call.is_side)
        kind = (response.get("error") or {}).get("kind")
        if kind in _OF_LIMITS:
            return
        is_whole = kind is None and response["status"] is not None and response["status"] < 300
        if is_whole and str(response.get("finish_reason")).lower() in _FAILED_ENDS:
            # An error in place of an answer, or at its end: some endpoints and proxies have sent their status by then.
            return tally.fail(call, _find_error(call, response), _parse_seconds(response["ts"]))
        if is_whole or kind == "incomplete":
            # Some servers close an answer without its end; its content counts.
            if _has_content(response):
                return tally.serve(call)
            if is_whole:
                tally.has_empty = True
                return None
        if kind == "client_closed" and not response.get("is_waiting"):
            if call.began >= tally.last_served and not _is_answering(response):
                waited = float(response["timing"]["total_ms"]) / 1000
                tally.left.append(_make_unanswered(waited, call.model))
            return None
        return tally.fail(call, _problem(call, response), _parse_seconds(response["ts"]))

    def find_problem(self, end: TurnEnd, silent: Mapping[str, float] | None = None) -> CallProblem | None:
        """Return the reason why the model did not answer, so that the turn does not reflect the agent; None if it did.

        Args:
            end: How the turn ended.
            silent: Seconds since the endpoint last sent anything, by the ids of calls in flight. A call that is not
                among them counts by its age.
        """
        tally = self._main if self._main.made else self._side
        if tally.problem is not None:
            return tally.problem
        now = time.time()
        waiting = list(tally.left)
        for id_, call in self._open.items():
            if self._tally(is_side=call.is_side) is tally and call.began > tally.last_served:
                waiting.append(_make_unanswered((silent or {}).get(id_, now - call.began), call.model))
        longest = max(waiting, key=lambda one: one.waited_sec, default=None)
        if longest is not None and _is_reason(waiting, end, has_served=tally.served > 0):
            return longest
        if tally.served or end.ended_by == "opening":
            return None
        if tally.has_empty:
            return CallProblem("empty", "every answer was empty")
        if not tally.made and self._refused is not None:
            message = f"the gateway does not pass on {self._refused}, which the agent asked for"
            return CallProblem("not_allowed", message)
        if not tally.made and end.ended_by != "agent":
            return CallProblem("no_call", "the agent had not called its model when the turn's time was over")
        return None


def _is_reason(waiting: list[CallProblem], end: TurnEnd, *, has_served: bool) -> bool:
    """Return whether unanswered calls, those since the last one that was served, are the reason why a turn ended."""
    waits = [problem.waited_sec for problem in waiting]
    if end.ended_by == "opening":
        # An agent needs every call that it makes to open a session.
        return not has_served
    if end.ended_by != "agent":
        # A slow model is no failure. One that sent nothing for half of the limit is.
        return not has_served or max(waits) >= end.limit_sec / 2
    if end.is_failed:
        # An agent that crashes leaves its calls as well.
        return max(waits) >= MIN_PATIENCE_SEC
    # One call may be left for many reasons; two in a row mean that the endpoint does not answer.
    return not has_served or (len(waits) > 1 and sum(waits) >= MIN_PATIENCE_SEC)


def _make_unanswered(seconds: float, model: str | None) -> CallProblem:
    return CallProblem("unanswered", f"no answer in {seconds:.0f} s", model=model, waited_sec=seconds)


def _parse_seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _is_answering(response: Mapping[str, Any]) -> bool:
    """Return whether the endpoint was answering when the agent left, or has answered since."""
    usage = response.get("usage") or {}
    is_reported = bool(usage) and not usage.get("is_estimated")
    return is_reported or response["timing"].get("upstream_first_byte_ms") is not None


def _problem(call: _Call, response: Mapping[str, Any]) -> CallProblem:
    """Return the problem of a call that ended with an error."""
    error = response.get("error") or {}
    kind, status = error.get("kind", "upstream_status"), response.get("status")
    if kind == "client_closed":
        # The agent left while the call waited for a retry.
        last = response["retries"][-1]
        kind = "upstream_status" if last["status"] is not None else "unreachable"
        return CallProblem(kind, last["words"], status=last["status"], words=last["words"], model=call.model)
    has_body = kind == "upstream_status" and isinstance(response.get("response"), str)
    return CallProblem(
        kind,
        str(error.get("message") or f"it answered {status}"),
        # The status of the gateway's own refusals is not the endpoint's.
        status=status if kind == "upstream_status" else None,
        words=endpoint_words(response["response"]) if has_body else "",
        model=call.model,
        is_of_proxy=has_body and next(_documents(response), None) is None,
    )


def _find_error(call: _Call, response: Mapping[str, Any]) -> CallProblem:
    """Return the problem of an answer that holds an error, with the endpoint's message."""
    words = ""
    for document in _documents(response):
        for place in (document, table(document.get("response")), *tables(document.get("choices"))):
            error = place.get("error") or (place if place.get("type") == "error" else None)
            words = endpoint_words(json.dumps({"error": error})) if error else words
    message = words or f"its answer ended with {response.get('finish_reason')!r}"
    return CallProblem("told_error", message, words=words, model=call.model)


def _has_content(response: Mapping[str, Any]) -> bool:
    """Return whether an answer has content: a token at least, or a filter or a limit ended it."""
    usage = response.get("usage") or {}
    has_tokens = bool(usage.get("output_tokens")) and not usage.get("is_estimated")
    was_cut = str(response.get("finish_reason")).lower() in _CUT_ENDS
    if has_tokens or was_cut or not isinstance(response.get("response"), str):
        return True
    answers = [document for document in _documents(response) if is_answer(document)]
    return any(count_output(document) or _CONTENT.search(json.dumps(document)) for document in answers)


def _documents(response: Mapping[str, Any]) -> Iterator[Document]:
    """Yield the JSON documents of a recorded response; none if it is not recorded as text."""
    text = response.get("response")
    return documents(text.encode("utf-8", "replace")) if isinstance(text, str) else iter(())
