"""Check that a loaded session is that of its parent: its first call must begin with the parent's last one.

The conversations are compared in their normal form, and so is the answer of the parent's call with the child's
repetition of it. The call goes on whatever the result; the engine reads it in the rollout's status, and records it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.contracts.gateway import Divergence, PrefixState, Registration
from benchflow.errors import ConfigError
from benchflow.gateway.call_record import parse_head
from benchflow.gateway.form_difference import is_prefix, short_diff
from benchflow.gateway.model_output import repeated_output, response_output
from benchflow.gateway.normal_form import Normaliser
from benchflow.llm_apis import Document, documents, read_json

_SYSTEM = ("system", "developer")

Body = Mapping[str, Any]


@dataclass(frozen=True)
class ParentCall:
    """The parent's last call."""

    seq: int
    """Number of the call in the parent's record."""

    api: str
    """Dialect."""

    body: Body
    """Request body."""

    answer: Sequence[Document]
    """Response, as `documents` parses it."""


def prefix_divergence(
    api: str,
    agent: str,
    earlier_request: Body,
    earlier_response: Sequence[Document],
    later_request: Body,
    *,
    seq: int = 0,
    recorded: int | None = None,
) -> Divergence | None:
    """Return how a call does not begin with an earlier one and its answer; None if it does.

    If the models differ, parts about the model itself (system prompts, tools) are not compared.

    Args:
        api: Dialect of both calls.
        agent: Name of the agent in the registry.
        earlier_request: Body of the earlier call.
        earlier_response: Its answer, as `documents` parses it; empty: the answer is not compared.
        later_request: Body of the later call.
        seq: Number of the later call, for the divergence.
        recorded: Number of the earlier call, for the divergence.

    Raises:
        ValueError: The dialect has no conversations.
    """
    rules = Normaliser.of(agent, api)
    name = rules.conversation
    if name is None:
        raise ValueError("in this dialect there is no conversation")
    if earlier_request.get("model") != later_request.get("model"):
        earlier_request, later_request = (
            {name: _drop_system(body.get(name))} for body in (earlier_request, later_request)
        )
    found = is_prefix(earlier_request, later_request, rules)
    if not found:
        message = f"the call begins otherwise than the parent's last: {found.shared} of {found.of} messages are equal"
        return Divergence(seq=seq, recorded=recorded, message=message, diff=found.diff)
    output = response_output(api, earlier_response)
    if not any(output.values()):
        return None
    rest = later_request.get(name)
    repeated = repeated_output(api, rest[found.of :] if isinstance(rest, list) else [])
    if repeated == output:
        return None
    message = "the call does not repeat the answer to the parent's last"
    return Divergence(seq=seq, recorded=recorded, message=message, diff=short_diff(output, repeated))


def _drop_system(conversation: Any) -> Any:
    """Return a conversation without system messages."""
    if not isinstance(conversation, list):
        return conversation
    return [item for item in conversation if not (isinstance(item, dict) and item.get("role") in _SYSTEM)]


def find_last_answered(record: Path, requests: int) -> ParentCall | None:
    """Return the last main call with a complete answer among the first `requests` of a record; None if there is none.

    Raises:
        ConfigError: The file is no record, or has fewer requests.
    """
    try:
        return _find_last_answered(record, requests)
    except OSError as error:
        raise _invalid_record(record, f"cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid_record(record, f"is no record: {error!r}") from error


def _find_last_answered(record: Path, requests: int) -> ParentCall | None:
    waiting: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] | None = None
    count = 0
    for start, text in _lines(record):
        head = parse_head(text)
        if head is not None:
            count += 1
            if count > requests:
                break
            if _is_main(head):
                waiting[head["id"]] = head | {"start": start}
            continue
        answer = read_json(text)
        request = waiting.pop(answer["id"], None)
        whole = answer.get("error") is None and (answer.get("status") or 500) < 300
        if request is not None and whole and (found is None or request["seq"] > found["seq"]):
            found = request | {"answer": _documents(answer)}
    if count < requests:
        raise _invalid_record(record, f"has {count} requests, not {requests}")
    if found is None:
        return None
    with record.open("rb") as file:
        file.seek(found["start"])
        body = read_json(file.readline()).get("request")
    return ParentCall(found["seq"], found["api"], body, found["answer"]) if isinstance(body, dict) else None


class PrefixCheck:
    """Check of the first main call of a rollout, which is made once.

    Attributes:
        state: The result.
        divergence: The difference; None unless `state` is `different`.
    """

    def __init__(self, agent: str, earlier: ParentCall, *, replayed: bool = False) -> None:
        """Make it.

        Args:
            agent: Name of the agent in the registry.
            earlier: The parent's last call.
            replayed: Whether the session is restored by a replay, so that calls answered from a record do not count.
        """
        self._agent, self._earlier = agent, earlier
        self._replayed = replayed
        self._taken = False
        self.state: PrefixState = "unchecked"
        self.divergence: Divergence | None = None

    @classmethod
    def open(cls, registration: Registration) -> PrefixCheck | None:
        """Return the check that a registration asks for, already made if the rollout's record has the call.

        None if it asks for none, or the parent had no answered call to compare with. Raises `ConfigError` for an
        unusable record of the parent.
        """
        if registration.prefix is None or not registration.prefix_requests:
            return None
        earlier = find_last_answered(Path(registration.prefix), registration.prefix_requests)
        if earlier is None:
            return None
        check = cls(registration.agent, earlier, replayed=registration.prefix_replayed)
        own = Path(registration.record)
        for _, text in _lines(own) if own.exists() else ():
            head = parse_head(text)
            if head is not None and _is_main(head) and check.is_due(head["source"]):
                check.check(read_json(text))
                break
        return check

    def is_due(self, source: str) -> bool:
        """Return whether a main call is the one to check. `source` is as in its request line."""
        return not self._taken and not (self._replayed and source == "replay")

    async def check_first(self, line: Mapping[str, Any]) -> None:
        """Check a call by its redacted request line, in a thread. An error in the check does not stop the call."""
        self._taken = True
        try:
            await asyncio.to_thread(self.check, line)
        except Exception as error:
            why = f"the call cannot be compared with the parent's last: {type(error).__name__}: {error}"
            self.state, self.divergence = "different", Divergence(seq=int(line["seq"]), message=why)

    def check(self, line: Mapping[str, Any]) -> None:
        """Check a call by its redacted request line, in this thread."""
        self._taken = True
        earlier, seq = self._earlier, int(line["seq"])
        body = line.get("request")
        if line["api"] != earlier.api or not isinstance(body, dict):
            message = f"the call is one of {line['api']}, and the parent's last one of {earlier.api}"
            self.divergence = Divergence(seq=seq, recorded=earlier.seq, message=message)
        else:
            self.divergence = prefix_divergence(
                *(earlier.api, self._agent, earlier.body, earlier.answer, body), seq=seq, recorded=earlier.seq
            )
        self.state = "equal" if self.divergence is None else "different"


def _is_main(head: Mapping[str, Any]) -> bool:
    """Return whether a request line is that of a main call."""
    return not head["side"] and head["api"] != "other"


def _documents(answer: Mapping[str, Any]) -> list[Document]:
    """Return the JSON documents of a recorded response."""
    packed = answer.get("response_base64")
    # A compressed body yields no documents: then only the request is compared.
    body = base64.b64decode(packed) if packed is not None else str(answer.get("response") or "").encode()
    return list(documents(body))


def _lines(record: Path) -> Iterator[tuple[int, bytes]]:
    """Yield every complete line and its offset."""
    start = 0
    with record.open("rb") as file:
        for text in file:
            if text.endswith(b"\n"):
                yield start, text
            start += len(text)


def _invalid_record(record: Path, message: str) -> ConfigError:
    return ConfigError(message, file=str(record), key="prefix", remedy="give the llm_trajectory.jsonl of the parent")
