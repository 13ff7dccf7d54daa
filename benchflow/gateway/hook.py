"""Where a replay takes part in a call: the protocol between the gateway and whoever answers from a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchflow.contracts.gateway import Divergence, Registration, ReplayStatus


@dataclass(frozen=True)
class Recorded:
    """A recorded answer. body: given to the agent as it is. Names of headers in small letters."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Diverged:
    """The call is not the recorded one: an error for it in strict mode, else it goes live. The next is asked for."""

    divergence: Divergence


class Replayer(Protocol):
    """Answers one rollout's calls from a record."""

    async def answer(self, request_line: dict[str, Any], body: bytes) -> Recorded | Diverged | None:
        """What the call gets; None: this and all later calls go live, and nobody is asked again.

        request_line: as `RequestLine`, with `request` or `request_text`, the token and keys replaced by their names as
        in any record; its `source` is not decided yet. body: the bytes as they came, token and all. Calls at the same
        time are asked for at the same time. A call that a strict replay refused may be followed by others.
        """

    def status(self) -> ReplayStatus:
        """How far it has come."""


class MakeReplayer(Protocol):
    """Makes the replayer of a registration whose `replay` is set.

    done: the generation calls of this rollout that are in its own record already, from before a restart of the gateway,
    in their order: the heads of their request lines (all but `request`). It may take seconds, and runs in a thread.
    Raises `ConfigError` for a record that cannot be answered from.
    """

    def __call__(self, registration: Registration, done: list[dict[str, Any]]) -> Replayer: ...
