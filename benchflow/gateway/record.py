"""The record of a rollout's calls: lines appended to a file, and what a restarted gateway reads off it.

Lines are `RequestLine` and `ResponseLine`. They are put together as text, because requests are large and repeat the
whole conversation: a body goes in as it came, and only its head is ever read here again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow.contracts.gateway import (
    TOKEN_NAME,
    TOKEN_PREFIX,
    CallError,
    CallTiming,
    CallUsage,
    Registration,
    ResponseLine,
)
from benchflow.disk_writes import append_all, end_of_lines
from benchflow.gateway.budget import Meter
from benchflow.gateway.dialects import read_json
from benchflow.gateway.refusals import Refusals
from benchflow.secrets import Redactor
from benchflow.store import storage_errors
from benchflow.trajectories.journal import timestamp

NOT_SENT = frozenset(
    {
        *("budget_exhausted", "missing_secret", "not_allowed", "replay_diverged", "too_many", "unpriced"),
        "unreadable",
    }
)
"""Errors of calls that never went to an upstream."""

TOKEN_COUNT = "token_count"
"""Why a request is no part of the task that only counts tokens."""

_TOKEN = re.compile(TOKEN_PREFIX + r"[0-9A-Za-z_-]{32,}")
_REQUEST = b'{"type": "request"'
_BODY = b', "request'
"""What the last part of a request line begins with: inside a text its quote would be escaped."""


class CallRedactor(Redactor):
    """Takes a rollout's token and key out of lines, fast where there is nothing to take out.

    And any other token: in a session that was loaded there may be that of the rollout in which it was held.
    """

    def __init__(self, registration: Registration, key: tuple[str, str] | None) -> None:
        super().__init__({TOKEN_NAME: registration.token} | (dict([key]) if key else {}))

    def line(self, line: str) -> str:
        """A line without them, which stays one, and as it is otherwise."""
        if TOKEN_PREFIX in line:
            line = _TOKEN.sub(f"[{TOKEN_NAME}]", line)
        if not any(form in line for form in self._spelled):
            return line
        cleaned = self(line)
        try:
            read_json(cleaned.encode("utf-8", "replace"))
        except ValueError:
            # A number that is a key's value, too.
            return super().line(line)
        return cleaned


def body_member(body: bytes | None, *, is_json: bool) -> str:
    """The last member of a request line. body: None for one that could not be read, because of how it is packed."""
    if not body:
        return '"request": null'
    text = body.decode("utf-8", "replace")
    if is_json:
        # Between the parts of a document a line may end; within its texts it cannot.
        return '"request": ' + text.replace("\n", " ").replace("\r", " ")
    return '"request_text": ' + json.dumps(text, ensure_ascii=False)


def response_member(body: bytes, *, compressed: bool) -> str:
    """The last member of a response line."""
    if not compressed:
        with contextlib.suppress(UnicodeDecodeError):
            return '"response": ' + json.dumps(body.decode(), ensure_ascii=False)
    return '"response_base64": ' + json.dumps(base64.b64encode(body).decode())


def line(head: Mapping[str, Any], last: str) -> str:
    """One line: the head's members, then the last one."""
    return json.dumps(head, ensure_ascii=False)[:-1] + ", " + last + "}"


@dataclass
class Past:
    """What a record says of the calls before. next_seq: of the next request; calls: heads of the generation calls.
    refusals: requests that were not passed on.
    """

    next_seq: int = 0
    requests: int = 0
    unanswered: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)


class Record:
    """Appends to one file. Nobody else writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Return its bytes. Raises `StoreError`."""
        with storage_errors(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    def append(self, text: str) -> None:
        """Append a line, whole. Raises `StoreError`."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                append_all(fd, text.encode("utf-8", "replace") + b"\n")
            finally:
                os.close(fd)

    def recover(self, meter: Meter) -> Past:
        """Read what is there, count it, take away half a line, and answer the calls that a gateway died with."""
        past = Past()
        if not self.path.exists():
            return past
        with storage_errors(self.path):
            with self.path.open("r+b") as file:
                file.truncate(end_of_lines(file.fileno()))
            with self.path.open("rb") as file:
                for text in file:
                    # A line that somebody has changed is no call of ours.
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        _take(text, past, meter)
        for id_ in past.unanswered:
            self.append(_restarted(id_))
        for head in past.unanswered.values():
            _count(head, {}, meter)
        past.unanswered.clear()
        return past


def head_of(text: bytes) -> dict[str, Any] | None:
    """A request line without what was asked; None for another line. Raises `ValueError`."""
    if not text.startswith(_REQUEST):
        return None
    cut = text.find(_BODY)
    head: dict[str, Any] = read_json(text[:cut] + b"}" if cut >= 0 else text)
    return head


def _take(text: bytes, past: Past, meter: Meter) -> None:
    head = head_of(text)
    if head is not None:
        past.unanswered[head["id"]] = head
        past.requests += 1
        past.next_seq = max(past.next_seq, head["seq"] + 1)
        if head["api"] != "other":
            past.calls.append(head)
        return
    response = read_json(text)
    if response["type"] == "refused":
        past.refusals.restore(response)
        return
    asked = past.unanswered.pop(response.get("id"), None)
    if asked is not None:
        _count(asked, response, meter)


def _count(head: Mapping[str, Any], response: Mapping[str, Any], meter: Meter) -> None:
    error = (response.get("error") or {}).get("kind")
    if error in NOT_SENT:
        if error == "budget_exhausted" and head["side_reason"] != TOKEN_COUNT:
            meter.admit()
        if error in ("unreadable", "not_allowed"):
            meter.refuse_body()
    elif head["side_reason"] == TOKEN_COUNT:
        meter.count_tokens()
    elif head["source"] == "replay":
        meter.replay()
    else:
        meter.begin(side=head["side"])
        usage = response.get("usage")
        answered = response.get("status") is not None and response["status"] < 300 and error != "client_closed"
        meter.end(CallUsage.model_validate(usage) if usage else None, answered=answered)


def _restarted(id_: str) -> str:
    message = "the gateway was ended while the call was under way"
    answer = ResponseLine(
        id=id_,
        ts=timestamp(),
        status=None,
        error=CallError(kind="gateway_restarted", message=message),
        timing=CallTiming(total_ms=0),
    )
    return line(answer.model_dump(exclude={"response", "response_base64"}), '"response": null')
