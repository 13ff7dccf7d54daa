"""The record of a rollout's calls: lines appended to a file, and their recovery after a restart of the gateway.

Lines are `RequestLine` and `ResponseLine`. They are assembled as text, because requests are large and repeat the whole
conversation: a body is inserted as it came, and the recovery parses only the head.
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
from benchflow.gateway.budget import Meter
from benchflow.gateway.refusals import Refusals
from benchflow.host_files import append_lines, find_end_of_lines, open_fd, raise_storage_errors
from benchflow.llm_apis import read_json
from benchflow.secrets import Redactor
from benchflow.trajectories.journal import format_timestamp

NOT_SENT = frozenset(
    {
        *("budget_exhausted", "missing_secret", "not_allowed", "replay_diverged", "too_many", "unpriced"),
        "unreadable",
    }
)
"""Errors of calls that were never sent to an upstream."""

TOKEN_COUNT = "token_count"
"""`side_reason` of a request that only counts tokens."""

_TOKEN = re.compile(TOKEN_PREFIX + r"[0-9A-Za-z_-]{32,}")
_REQUEST = b'{"type": "request"'
_BODY = b', "request'
"""Beginning of the last member of a request line: inside a text its quote would be escaped."""


class CallRedactor(Redactor):
    """Redacts a rollout's token and key from lines, fast where there is nothing to redact.

    Any other token is redacted, too: a loaded session may contain that of the rollout in which it was held.
    """

    def __init__(self, registration: Registration, key: tuple[str, str] | None) -> None:
        """Make it. `key` is the name and value of the real key; None if there is none."""
        super().__init__({TOKEN_NAME: registration.token} | (dict([key]) if key else {}))

    def line(self, line: str) -> str:
        """Return a line without them. It remains JSON, and unchanged otherwise."""
        if TOKEN_PREFIX in line:
            line = _TOKEN.sub(f"[{TOKEN_NAME}]", line)
        if not any(form in line for form in self._spelled):
            return line
        cleaned = self(line)
        try:
            read_json(cleaned.encode("utf-8", "replace"))
        except ValueError:
            # The value also occurred in a number, so that the line is no JSON any more.
            return super().line(line)
        return cleaned


def body_member(body: bytes | None, *, is_json: bool) -> str:
    """Return the last member of a request line, as JSON text.

    Args:
        body: The request's body; None if it cannot be unpacked.
        is_json: Whether it is JSON, which is inserted as it is; else it becomes a string.
    """
    if not body:
        return '"request": null'
    text = body.decode("utf-8", "replace")
    if is_json:
        # JSON allows line breaks between tokens but not within strings, so that these are no part of a string.
        return '"request": ' + text.replace("\n", " ").replace("\r", " ")
    return '"request_text": ' + json.dumps(text, ensure_ascii=False)


def response_member(body: bytes, *, compressed: bool) -> str:
    """Return the last member of a response line, as JSON text: base64 for a body that is compressed or no UTF-8."""
    if not compressed:
        with contextlib.suppress(UnicodeDecodeError):
            return '"response": ' + json.dumps(body.decode(), ensure_ascii=False)
    return '"response_base64": ' + json.dumps(base64.b64encode(body).decode())


def line(head: Mapping[str, Any], last: str) -> str:
    """Return a line of the record: the members of the head, then the last one."""
    return json.dumps(head, ensure_ascii=False)[:-1] + ", " + last + "}"


@dataclass
class Past:
    """The calls that a record holds from before a restart."""

    next_seq: int = 0
    """Number of the next request."""

    requests: int = 0
    """Number of requests."""

    unanswered: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Heads of requests without a response, by id."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    """Heads of the generation calls."""

    refusals: Refusals = field(default_factory=Refusals)
    """Requests that were not forwarded."""


class Record:
    """Appends lines to the record of a rollout, of which it is the only writer."""

    def __init__(self, path: Path) -> None:
        """Make it for a file, which need not exist yet."""
        self.path = path

    def size(self) -> int:
        """Return the size in bytes; 0 if there is no file. Raise `StoreError`."""
        with raise_storage_errors(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    def append(self, text: str) -> None:
        """Append a complete line. Raise `StoreError`."""
        with raise_storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open_fd(self.path, os.O_RDWR | os.O_CREAT, 0o644) as fd:
                append_lines(fd, text.encode("utf-8", "replace") + b"\n")

    def recover(self, meter: Meter) -> Past:
        """Read the record after a restart, and return its calls.

        An incomplete last line is removed. Calls without a response get one, with the error `gateway_restarted`. Raises
        `StoreError`.

        Args:
            meter: Meter in which the calls are counted.
        """
        past = Past()
        if not self.path.exists():
            return past
        with raise_storage_errors(self.path):
            with self.path.open("r+b") as file:
                file.truncate(find_end_of_lines(file.fileno()))
            with self.path.open("rb") as file:
                for text in file:
                    # A line that was changed by hand is skipped.
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        _count_line(text, past, meter)
        for id_ in past.unanswered:
            self.append(_make_restart_line(id_))
        for head in past.unanswered.values():
            _meter_call(head, {}, meter)
        past.unanswered.clear()
        return past


def parse_head(text: bytes) -> dict[str, Any] | None:
    """Parse a request line without its body. Return None for another line; raise `ValueError` for invalid JSON."""
    if not text.startswith(_REQUEST):
        return None
    cut = text.find(_BODY)
    head: dict[str, Any] = read_json(text[:cut] + b"}" if cut >= 0 else text)
    return head


def _count_line(text: bytes, past: Past, meter: Meter) -> None:
    """Count a line of the record in `past`; a response also in the meter."""
    head = parse_head(text)
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
    request = past.unanswered.pop(response.get("id"), None)
    if request is not None:
        _meter_call(request, response, meter)


def _meter_call(head: Mapping[str, Any], response: Mapping[str, Any], meter: Meter) -> None:
    """Count a recorded call in the meter, as it was counted when it was made. `response` is empty for none."""
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


def _make_restart_line(id_: str) -> str:
    """Return the response line of a call during which the gateway ended."""
    message = "the gateway was ended while the call was under way"
    answer = ResponseLine(
        id=id_,
        ts=format_timestamp(),
        status=None,
        error=CallError(kind="gateway_restarted", message=message),
        timing=CallTiming(total_ms=0),
    )
    return line(answer.model_dump(exclude={"response", "response_base64"}), '"response": null')
