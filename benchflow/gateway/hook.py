"""Interface between the gateway and the replay that answers calls from a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchflow.contracts.gateway import Divergence, Registration, ReplayStatus


@dataclass(frozen=True)
class Recorded:
    """A recorded answer, which the agent gets as it is."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers, with names in lower case."""

    body: bytes = b""


@dataclass(frozen=True)
class Diverged:
    """A call without a recorded answer, refused by a strict replay, else sent live. The next call is asked for."""

    divergence: Divergence


class Replayer(Protocol):
    """Answers the calls of one rollout from a record."""

    async def answer(self, request_line: dict[str, Any], body: bytes) -> Recorded | Diverged | None:
        """Return the outcome of a call; None: this and all later calls go live, without being asked for again.

        Concurrent calls are asked for concurrently. A call that a strict replay refused may be followed by others.

        Args:
            request_line: As `RequestLine`, with `request` or `request_text`, the token and keys redacted as in any
                record; its `source` is not decided yet.
            body: The body as received, not redacted.
        """

    def status(self) -> ReplayStatus:
        """Return the progress of the replay."""


class MakeReplayer(Protocol):
    """Factory of replayers."""

    def __call__(self, registration: Registration, done: list[dict[str, Any]]) -> Replayer:
        """Return the replayer of a registration whose `replay` is set. Called in a thread, since it may take seconds.

        Args:
            registration: The registration.
            done: Generation calls in the rollout's own record, from before a restart of the gateway, in order: the
                heads of their request lines (all but `request`).

        Raises:
            ConfigError: The record cannot be answered from.
        """
        ...
