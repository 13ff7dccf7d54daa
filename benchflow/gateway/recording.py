"""A record of an earlier run, opened to be answered from.

What is kept in memory of a call is its head, the digest of its normal form, and where its lines are: requests repeat
the whole conversation, so that a record is large.
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
from benchflow.gateway.normalise import call_form, digest

LOST = frozenset({"gateway_restarted", "gateway_stopped"})
"""Errors of answers that were there, and did not reach the agent, which asks again."""

CUT = LOST | {"client_closed", "stalled", "truncated"}
"""Errors of answers that did not come to an end."""

REFUSED = frozenset(
    {
        *("budget_exhausted", "missing_secret", "replay_diverged", "too_large", "too_many", "unpriced"),
        "unreadable",
    }
)
"""Errors by which the gateway itself has said no: no answers of a model."""


@dataclass
class Call:
    """One call of a record.

    seq: its number in the record. digest: of its normal form. source: `live` or `replay`. request, response: where
    their lines are in the file, the latter None for a call that was not answered. error: the kind of the error that it
    ended with.
    """

    id: str
    seq: int
    node: str | None
    side: bool
    source: str
    digest: str
    request: int
    response: int | None = None
    status: int | None = None
    error: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the agent got an answer, whole: also one that says that something went wrong upstream."""
        return self.status is not None and self.error not in CUT | REFUSED

    @property
    def why_not(self) -> str:
        """Why there is no answer."""
        if self.response is None:
            return "it was not answered"
        return f"it ended with {self.error}" if self.error else "it was given nothing"


class Recording:
    """The calls of a record, in the order in which they were asked. Requests for no model count as side calls."""

    def __init__(self, path: Path, agent: str) -> None:
        """Raises `ConfigError` for a file that is not there, or is no record."""
        self.path = path
        self._agent = agent
        self.calls: list[Call] = []
        by_id: dict[str, Call] = {}
        for offset, line in _lines(path):
            try:
                self._add(line, offset, by_id)
            except (KeyError, TypeError, ValueError) as error:
                raise _no_record(path, f"the line at byte {offset} is no line of a record: {error!r}") from error
        self.calls.sort(key=lambda call: call.seq)

    def request(self, call: Call) -> dict[str, Any]:
        """What was asked: its line."""
        return self._line(call.request)

    def form(self, call: Call) -> dict[str, Any]:
        """The normal form of what was asked."""
        line = self.request(call)
        return call_form(line, body_of(line), self._agent)

    def answer(self, call: Call) -> Recorded:
        """What it got, byte for byte. Raises `ConfigError` when the file has changed since."""
        line = self._line(call.response) if call.response is not None else {}
        if line.get("id") != call.id:
            raise _no_record(self.path, f"the answer of call {call.seq} is not where it was")
        packed = line.get("response_base64")
        body = base64.b64decode(packed) if packed is not None else (line.get("response") or "").encode()
        headers = {name.lower(): value for name, value in (line.get("headers") or {}).items()}
        return Recorded(int(line["status"]), headers, body)

    def last_of(self, until: str) -> int:
        """The number of the last call that leads to a node, or of the call whose number this is.

        Raises `ConfigError` for a node whose calls are not in the record.
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

    def _add(self, line: dict[str, Any], offset: int, by_id: dict[str, Call]) -> None:
        if line["type"] == "request":
            form = digest(call_form(line, body_of(line), self._agent))
            side = bool(line["side"]) or line["api"] == "other"
            call = Call(line["id"], int(line["seq"]), line["node"], side, line["source"], form, offset)
            by_id[call.id] = call
            self.calls.append(call)
        elif line["type"] == "response" and line["id"] in by_id:
            call = by_id[line["id"]]
            call.response, call.status = offset, line["status"]
            call.error = (line.get("error") or {}).get("kind")

    def _line(self, offset: int) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                line = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise _no_record(self.path, f"cannot be read any more: {error}") from error
        return line if isinstance(line, dict) else {}


def body_of(line: Mapping[str, Any]) -> Any:
    """What a request line has for a body: a document, a text, or None."""
    return line["request_text"] if line.get("request_text") is not None else line.get("request")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole line and where it is. The last one may have been cut by a crash."""
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
