"""Client of the engine's helper in a sandbox, which works on the world's databases and ports.

The helper programs (`benchflow.planes.environment.helper`) are run as root, by the image's Python or by a mounted
one: the program's text and a request are its arguments, one line of JSON on stdout is the response. Nothing is
installed in the sandbox, and every operation may be repeated after a crash in the middle of it.
"""

from __future__ import annotations

import functools
import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from benchflow.contracts.environment import ProbeAnswer
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import StateBusyError, StateError, WorldError

PROBE_INTERVAL_SEC = 0.03
"""Seconds between two attempts of one probe."""

_OPTIONS = ("-I", "-S", "-X", "utf8", "-c")
_OWN_IMPORT = re.compile(r"^from (?:__future__|benchflow\S*) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_ANSWER = "benchflow "
_PIECE = 64 * 1024
"""Characters of a request in one argument: the kernel's limit is 128 KiB (MAX_ARG_STRLEN)."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of a wait for readiness."""

    answers: tuple[ProbeAnswer, ...]
    """Answers: one for each URL, in their order, then one for each port."""

    ended: tuple[str, ...] = ()
    """Those files of `exits` that exist."""

    @property
    def healthy(self) -> bool:
        """Return whether all targets are healthy."""
        return all(answer.healthy for answer in self.answers)


class WorldHelper:
    """Client of the helper in one sandbox."""

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        """Make it. python: name or path of the interpreter in the sandbox."""
        self.sandbox = sandbox
        self._python = python

    async def ask(self, operation: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Run an operation of the helper and return its response. Each may be repeated.

        Args:
            operation: `snapshot`, `restore`, `probe`, `ports` or `observe`.
            request: Parameters of the operation, JSON values.
            timeout: Seconds after which the helper ends itself.

        Raises:
            StateError: The operation failed (the key is the path in question), or the helper gave no response to
                `snapshot` or `restore`. `StateBusyError` if a process holds a database.
            WorldError: The helper gave no response to another operation, or not within the timeout.
        """
        asked = json.dumps({**request, "operation": operation, "timeout": timeout})
        pieces = [asked[at : at + _PIECE] for at in range(0, len(asked), _PIECE)]
        words = (self._python, *_OPTIONS, _read_program(operation), *pieces)
        # The helper's own alarm comes before this timeout, so that no helper keeps running beside the next one.
        result = await self.sandbox.control('exec "$@"', *words, timeout=timeout + 5)
        told = next((line for line in result.stdout.splitlines() if line.startswith(_ANSWER)), None)
        if told is None:
            late = result.timed_out or result.return_code == 128 + signal.SIGALRM
            why = f"did not end in {timeout:g} s" if late else f"ended with status {result.return_code}"
            kind = StateError if operation in ("snapshot", "restore") else WorldError
            raise kind(
                f"the helper in the sandbox ({self._python}, {operation}) {why}",
                remedy="look whether the sandbox has memory and time enough",
                log_tail=result.stderr[-2000:] or None,
            )
        answer: dict[str, Any] = json.loads(told.removeprefix(_ANSWER))
        if "error" in answer:
            raise _make_error(**answer["error"])
        return answer

    async def probe(
        self,
        *,
        http: Sequence[str] = (),
        tcp: Sequence[int] = (),
        deadline: float,
        exits: Sequence[str] = (),
        every: float = PROBE_INTERVAL_SEC,
    ) -> ProbeResult:
        """Poll all targets at once until all are healthy or `deadline` seconds have passed.

        An unhealthy target is no error: the result has its last answer, such as `connection refused`, `timed out` or
        `HTTP 503: starting`.

        Args:
            http: URLs as the sandbox sees them, healthy if the response has a status of 200 to 399.
            tcp: Ports of the sandbox's localhost that must accept a connection.
            deadline: Seconds until the wait is over.
            exits: Absolute paths in the sandbox: as soon as one of these files exists, the wait is over, too.
            every: Seconds between two attempts of one probe.
        """
        request = {"http": list(http), "tcp": list(tcp), "deadline": deadline, "exits": list(exits), "every": every}
        answer = await self.ask("probe", request, deadline + 15)
        answers = tuple(ProbeAnswer.model_validate(each) for each in answer["answers"])
        return ProbeResult(answers, tuple(answer["ended"]))

    async def ports_in_use(self, ports: Sequence[int]) -> dict[int, str]:
        """Return those of `ports` on which a process of the sandbox listens, with its command and pid.

        The text is empty if the process is not known.
        """
        answer = await self.ask("ports", {"ports": list(ports)}, 30.0)
        return {int(port): str(who) for port, who in answer["ports"].items()}


_FAILURES: dict[str, tuple[type[StateError], str]] = {
    "busy": (StateBusyError, "have the process that holds it end or commit, then try again"),
    "live": (StateBusyError, "end the process, or reset with hard=True"),
    "full": (StateError, "give the sandbox more disk space, or keep fewer snapshots"),
    "foreign": (StateError, "declare files of the world itself in environment.state.paths"),
    "not-a-database": (StateError, "declare SQLite databases only in environment.state.paths"),
    "read-only": (StateError, "leave it out of environment.state.paths: what nobody can write is no state"),
    "twice": (StateError, "declare each file once in environment.state.paths"),
    "changed": (StateError, "keep the sandbox's processes from the files of a snapshot, and take it again"),
    "state": (StateError, "look at the file in the sandbox"),
}
"""Kinds of failures in the helper's responses, with the error to raise and its remedy."""


def _make_error(kind: str, message: str, path: str | None) -> StateError:
    failure, remedy = _FAILURES[kind]
    return failure(message, key=path, remedy=remedy)


@functools.cache
def _read_program(operation: str) -> str:
    """Return the text of a helper program, in one piece with the module that all of them share."""
    directory = resources.files("benchflow.planes.environment.helper")
    shared, own = ((directory / f"{name}.py").read_text() for name in ("shared", operation))
    return shared + _OWN_IMPORT.sub("", own)
