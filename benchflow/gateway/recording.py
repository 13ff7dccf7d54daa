"""A record of an earlier run, indexed to be answered from.

In memory are, of each call, its head, the digest of its normal form, and the offsets of its lines: requests repeat the
whole conversation, so that a record is large.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.errors import ConfigError
from benchflow.gateway.hook import Recorded
from benchflow.gateway.normal_form import call_form, digest

LOST = frozenset({"gateway_restarted", "gateway_stopped"})
"""Errors of answers that existed but did not reach the agent, which repeats the call."""

CUT = LOST | {"client_closed", "stalled", "truncated"}
"""Errors of answers that are incomplete."""

REFUSED = frozenset(
    {
        *("budget_exhausted", "missing_secret", "replay_diverged", "too_large", "too_many", "unpriced"),
        "unreadable",
    }
)
"""Errors by which the gateway itself refused a call: these are no answers of a model."""


@dataclass
class RecordedCall:
    """One call of a record."""

    id: str
    seq: int
    """Number of the call in the record."""

    node: str | None
    """Id of the node to which its turn leads; None if unknown."""

    side: bool
    """Whether it is no part of the task."""

    source: str
    """`live` or `replay`."""

    digest: str
    """Digest of its normal form."""

    request: int
    """Offset of its request line in the file."""

    response: int | None = None
    """Offset of its response line; None for a call without a response."""

    status: int | None = None
    """HTTP status of the response; None if the agent got none."""

    error: str | None = None
    """Kind of the error with which it ended; None for none."""

    @property
    def answered(self) -> bool:
        """Return whether the agent got a complete answer, which may be an error of the upstream."""
        return self.status is not None and self.error not in CUT | REFUSED

    @property
    def missing_reason(self) -> str:
        """Return why there is no answer, as a phrase for a message."""
        if self.response is None:
            return "it was not answered"
        return f"it ended with {self.error}" if self.error else "it was given nothing"


class Recording:
    """The calls of a record, in the order of their requests. Requests to no model count as side calls."""

    def __init__(self, path: Path, agent: str) -> None:
        """Read the whole record.

        Args:
            path: File of the record.
            agent: Name of the agent in the registry.

        Raises:
            ConfigError: The file is missing, or is no record.
        """
        self.path = path
        self._agent = agent
        self.calls: list[RecordedCall] = []
        by_id: dict[str, RecordedCall] = {}
        for offset, line in _lines(path):
            try:
                self._add(line, offset, by_id)
            except (KeyError, TypeError, ValueError) as error:
                raise _no_record(path, f"the line at byte {offset} is no line of a record: {error!r}") from error
        self.calls.sort(key=lambda call: call.seq)

    def request(self, call: RecordedCall) -> dict[str, Any]:
        """Read the request line of a call."""
        return self._line(call.request)

    def form(self, call: RecordedCall) -> dict[str, Any]:
        """Return the normal form of a call."""
        line = self.request(call)
        return call_form(line, get_body(line), self._agent)

    def answer(self, call: RecordedCall) -> Recorded:
        """Read the answer of a call, byte for byte. Raise `ConfigError` if the file has changed meanwhile."""
        line = self._line(call.response) if call.response is not None else {}
        if line.get("id") != call.id:
            raise _no_record(self.path, f"the answer of call {call.seq} is not where it was")
        packed = line.get("response_base64")
        body = base64.b64decode(packed) if packed is not None else (line.get("response") or "").encode()
        headers = {name.lower(): value for name, value in (line.get("headers") or {}).items()}
        return Recorded(int(line["status"]), headers, body)

    def find_last(self, until: str) -> int:
        """Return the number of the last call that leads to a node, or of the call with this number.

        Args:
            until: Id of the node, or the call's number.

        Raises:
            ConfigError: The record has no such call.
        """
        found = [call.seq for call in self.calls if call.node == until]
        if not found and until.isdecimal():
            found = [call.seq for call in self.calls if call.seq == int(until)]
        if not found:
            nodes = list(dict.fromkeys(call.node for call in self.calls if call.node is not None))
            raise ConfigError(
                f"no call of the record leads to the node {until!r}",
                file=str(self.path),
                key="until",
                remedy=f"name one of {', '.join(nodes)}" if nodes else "leave it away: the record names no nodes",
            )
        return max(found)

    def _add(self, line: dict[str, Any], offset: int, by_id: dict[str, RecordedCall]) -> None:
        """Add the call of a request line, or complete that of a response line."""
        if line["type"] == "request":
            form = digest(call_form(line, get_body(line), self._agent))
            side = bool(line["side"]) or line["api"] == "other"
            call = RecordedCall(line["id"], int(line["seq"]), line["node"], side, line["source"], form, offset)
            by_id[call.id] = call
            self.calls.append(call)
        elif line["type"] == "response" and line["id"] in by_id:
            call = by_id[line["id"]]
            call.response, call.status = offset, line["status"]
            call.error = (line.get("error") or {}).get("kind")

    def _line(self, offset: int) -> dict[str, Any]:
        """Read the line at an offset. Raise `ConfigError` if that fails."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                line = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise _no_record(self.path, f"cannot be read any more: {error}") from error
        return line if isinstance(line, dict) else {}


def get_body(line: Mapping[str, Any]) -> Any:
    """Return the body in a request line: a document, a text, or None."""
    return line["request_text"] if line.get("request_text") is not None else line.get("request")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every complete line and its offset. A crash may have cut the last one."""
    try:
        with path.open("rb") as file:
            offset = 0
            for text in file:
                if text.endswith(b"\n"):
                    yield offset, json.loads(text)
                offset += len(text)
    except OSError as error:
        raise _no_record(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _no_record(path, f"the line at byte {offset} is not JSON") from error


def _no_record(path: Path, message: str) -> ConfigError:
    return ConfigError(message, file=str(path), remedy="give the llm_trajectory.jsonl of a rollout")
