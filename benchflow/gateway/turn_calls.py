"""The model calls of one turn, read off the rollout's record: whether the endpoint served them, or failed for good.

An agent that got nothing but errors may say anything, and often that it is done. The record outlives every process, so
that whoever ends the turn judges it alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchflow.gateway.dialects import read_json
from benchflow.gateway.dialects.reading import count_spoken, documents
from benchflow.gateway.endpoint_errors import CallProblem, endpoint_words
from benchflow.gateway.record import head_of

EndedBy = Literal["agent", "idle", "wall_clock", "opening"]
"""What ends a turn: the agent, in whatever way, or one of its limits. `opening` is no turn, but a session that the
agent could not open."""

MIN_PATIENCE_SEC = 30.0
"""Seconds after which an agent that closes the connection of a call has given up on the endpoint. Before, it may have
reasons of its own: it ends, or does not need the answer any more."""

_OF_LIMITS = frozenset({"budget_exhausted", "replay_diverged", "too_many"})
"""Refusals of the gateway that say nothing of the endpoint, and have errors of their own."""

_TOOL_CALLS = ('"tool_calls"', '"tool_use"', '"function_call"', '"functionCall"', '"custom_tool_call"')
"""Names under which the dialects' answers have calls of tools."""


@dataclass(frozen=True)
class _Call:
    """A call without a response."""

    began: float
    model: str | None
    is_side: bool


class TurnCalls:
    """The main calls of a turn so far. Side calls count where there is no main call; token counts never do."""

    def __init__(self, record: Path, offset: int) -> None:
        """Begin at a position of a record.

        Args:
            record: The rollout's `llm_trajectory.jsonl`, which need not exist yet.
            offset: Bytes of it that belong to earlier turns.
        """
        self._record = record
        self._offset = offset
        self._open: dict[str, _Call] = {}
        self._made = 0
        self._served = 0
        self._models: set[str | None] = set()
        self._has_empty = False
        self._refused: str | None = None
        self._problem: CallProblem | None = None
        self._side_problem: CallProblem | None = None
        self._left_soon: CallProblem | None = None
        self._failing_since: float | None = None

    @property
    def failing_sec(self) -> float:
        """Return for how long all calls have failed that ended; 0 if the last one was served."""
        return 0.0 if self._failing_since is None else time.time() - self._failing_since

    def read(self) -> None:
        """Take in what was recorded since. A line that is not complete yet is left to the next time."""
        with contextlib.suppress(FileNotFoundError), self._record.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                # A line that somebody has changed is no call of ours.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._take(line)

    def _take(self, line: bytes) -> None:
        head = head_of(line)
        if head is not None:
            if head["api"] != "other":
                self._made += not head["side"]
                began = datetime.fromisoformat(head["ts"]).timestamp()
                self._open[head["id"]] = _Call(began, head["model"], head["side"])
            return
        response = read_json(line)
        if response["type"] == "refused":
            self._refused = self._refused or f"{response['method']} {response['path']}"
        elif (call := self._open.pop(response["id"], None)) is not None:
            self._end(call, response)

    def _end(self, call: _Call, response: Mapping[str, Any]) -> None:
        error = response.get("error") or {}
        if error.get("kind") in _OF_LIMITS:
            return
        if call.is_side:
            is_served = not error and response["status"] is not None
            self._side_problem = None if is_served else _problem(call, response)
            return
        if not error and response["status"] is not None and response["status"] < 300:
            if not self._served and not _says_something(response):
                self._has_empty = True
                return
            self._served += 1
            self._models.add(call.model)
            self._problem = self._failing_since = None
            return
        problem = _problem(call, response)
        if problem.waited_sec is not None and problem.waited_sec < MIN_PATIENCE_SEC:
            self._left_soon = problem
            return
        self._problem = problem
        self._failing_since = self._failing_since or call.began

    def find_problem(self, ended_by: EndedBy, limit_sec: float | None) -> CallProblem | None:
        """Return what kept the model from answering, so that the turn says nothing of the agent; None if nothing did.

        Args:
            ended_by: What ended the turn.
            limit_sec: The limit that did, in seconds.
        """
        problem = self._unanswered(ended_by) or self._problem
        if ended_by == "opening":
            # Whatever an agent asks for then, it needs.
            problem = problem or self._left_soon or self._side_problem
            return None if self._served else problem
        if self._served:
            return problem if problem is not None and self._is_cause(problem, ended_by, limit_sec) else None
        if problem is not None:
            return problem
        if self._has_empty:
            return CallProblem("empty", "every answer was empty")
        if self._made:
            message = "no call was answered before the turn's time was over"
            return CallProblem("unanswered", message) if ended_by != "agent" else None
        if self._refused is not None:
            message = f"the gateway does not pass on {self._refused}, which the agent asked for"
            return CallProblem("not_allowed", message)
        if self._side_problem is None and ended_by != "agent":
            return CallProblem("unanswered", "the agent asked for nothing before the turn's time was over")
        # Some agents ask for a title first, or whether the model is there, and give up.
        return self._side_problem

    def _unanswered(self, ended_by: EndedBy) -> CallProblem | None:
        """Return the problem of the call that waits the longest, if one does."""
        calls = [call for call in self._open.values() if not call.is_side or not self._made]
        if not calls:
            return None
        call = min(calls, key=lambda one: one.began)
        waited = time.time() - call.began
        if ended_by == "agent" and waited < MIN_PATIENCE_SEC:
            return None
        return CallProblem("unanswered", f"no answer in {waited:.0f} s", model=call.model, waited_sec=waited)

    def _is_cause(self, problem: CallProblem, ended_by: EndedBy, limit_sec: float | None) -> bool:
        """Return whether the last call's problem is why the turn ended, where calls before it were served.

        What a request causes by itself is no such reason: an agent that is about to fail could make one.
        """
        is_unknown = problem.is_model or problem.status == 404
        if problem.is_of_request or (is_unknown and problem.model not in self._models):
            return False
        if problem.waited_sec is None or ended_by in ("agent", "idle"):
            return True
        # A slow model is no failure. One that took half of the turn for no word is.
        return not problem.is_streaming and limit_sec is not None and problem.waited_sec >= limit_sec / 2


def _problem(call: _Call, response: Mapping[str, Any]) -> CallProblem:
    error, timing = response.get("error") or {}, response.get("timing") or {}
    kind, status = error.get("kind", "upstream_status"), response.get("status")
    retries = response.get("retries") or ()
    if kind == "client_closed" and retries:
        last = retries[-1]
        kind = "upstream_status" if last["status"] is not None else "unreachable"
        return CallProblem(kind, last["words"], status=last["status"], words=last["words"], model=call.model)
    if kind == "client_closed":
        waited = float(timing.get("total_ms") or 0.0) / 1000
        return CallProblem(
            "unanswered",
            f"no whole answer in {waited:.0f} s",
            model=call.model,
            waited_sec=waited,
            is_streaming=timing.get("upstream_first_byte_ms") is not None,
        )
    is_told = kind == "upstream_status" and isinstance(response.get("response"), str)
    return CallProblem(
        kind,
        str(error.get("message") or f"it answered {status}"),
        # What the gateway refuses has a status of its own.
        status=status if kind == "upstream_status" else None,
        words=endpoint_words(response["response"]) if is_told else "",
        model=call.model,
    )


def _says_something(response: Mapping[str, Any]) -> bool:
    text = response.get("response")
    if not isinstance(text, str) or any(name in text for name in _TOOL_CALLS):
        return True
    content_type = (response.get("headers") or {}).get("content-type", "")
    return any(count_spoken(document) for document in documents(text.encode("utf-8", "replace"), content_type))
