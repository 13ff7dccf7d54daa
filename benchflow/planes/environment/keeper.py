"""The keeper: the engine's hand inside a sandbox, where the world's databases and ports are.

Its helper programs (`benchflow.planes.environment.helper`) are run by the image's Python, or by a mounted Node, as the
engine's own root commands: the program's text and a request go in as arguments, one line of JSON comes out. Nothing is
left in the sandbox, and every operation may be asked for again after a crash in the middle of it.
"""

from __future__ import annotations

import base64
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
from benchflow.planes.environment.interpreter import Kind

PROBE_EVERY = 0.03
"""Seconds between two tries of one probe."""

_START = {"python3": ("-I", "-S", "-X", "utf8", "-c"), "node": ("--no-warnings", "--input-type=module", "-e")}
_SUFFIX = {"python3": ".py", "node": ".mjs"}
_OWN_IMPORT = re.compile(r"^from (?:__future__|benchflow\S*) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_ANSWER = "benchflow "
_PIECE = 64 * 1024
"""Characters of a request in one argument: the kernel takes 128 KiB."""


@dataclass(frozen=True)
class Probed:
    """How a wait for readiness came out.

    answers: one for each URL, in their order, then one for each port. ended: those of `exits` that are there.
    """

    answers: tuple[ProbeAnswer, ...]
    ended: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return all(answer.healthy for answer in self.answers)


class Keeper:
    """program: the words that start the interpreter in the sandbox (`program_of`); kind: which one it is."""

    def __init__(self, sandbox: Sandbox, program: Sequence[str], kind: Kind) -> None:
        self.sandbox = sandbox
        self._program = tuple(program)
        self._kind = kind

    async def ask(self, operation: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Have an operation carried out: `snapshot`, `restore`, `probe`, `ports`, `observe`. Repeatable, each of them.

        Raises `StateError` (key: the path it is about), its `StateBusyError`, and `WorldError` when the helper did not
        run or not end in `timeout` seconds.
        """
        text = _text(operation, self._kind)
        asked = json.dumps({**request, "operation": operation, "timeout": timeout})
        pieces = [asked[at : at + _PIECE] for at in range(0, len(asked), _PIECE)]
        words = (*self._program, *_START[self._kind], text, *pieces)
        # The helper gives up by itself before its caller does, so that none goes on behind the next one's back.
        result = await self.sandbox.control('exec "$@"', *words, timeout=timeout + 5)
        told = next((line for line in result.stdout.splitlines() if line.startswith(_ANSWER)), None)
        if told is None:
            late = result.timed_out or result.return_code == 128 + signal.SIGALRM
            why = f"did not end in {timeout:g} s" if late else f"ended with status {result.return_code}"
            kind = StateError if operation in ("snapshot", "restore") else WorldError
            raise kind(
                f"the helper in the sandbox ({self._kind}, {operation}) {why}",
                remedy="look whether the sandbox has memory and time enough",
                log_tail=result.stderr[-2000:] or None,
            )
        answer: dict[str, Any] = json.loads(told.removeprefix(_ANSWER))
        if "error" in answer:
            raise _error(**answer["error"])
        return answer

    async def probe(
        self,
        *,
        http: Sequence[str] = (),
        tcp: Sequence[int] = (),
        deadline: float,
        exits: Sequence[str] = (),
        every: float = PROBE_EVERY,
    ) -> Probed:
        """Try all targets at once, each again and again, until all are healthy or `deadline` seconds have passed.

        http: URLs as the sandbox sees them, healthy when they answer with a status of 200 to 399. tcp: ports of its
        localhost that must accept a connection. exits: absolute paths in the sandbox; as soon as one of these files is
        there, the wait is over, too. Each answer is the last thing met: `HTTP 200`, `connection refused`, `HTTP 503:
        starting`, `timed out`. Does not raise for what is not healthy.
        """
        request = {"http": list(http), "tcp": list(tcp), "deadline": deadline, "exits": list(exits), "every": every}
        answer = await self.ask("probe", request, deadline + 15)
        answers = tuple(ProbeAnswer.model_validate(each) for each in answer["answers"])
        return Probed(answers, tuple(answer["ended"]))

    async def ports_in_use(self, ports: Sequence[int]) -> dict[int, str]:
        """Which of these TCP ports somebody in the sandbox listens on, and who: a command and its pid, or ``."""
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
"""What the helper calls a failure; as which error, and with which remedy, it is raised here."""


def _error(kind: str, message: str, path: str | None) -> StateError:
    failure, remedy = _FAILURES[kind]
    return failure(message, key=path, remedy=remedy)


@functools.cache
def _text(operation: str, kind: Kind) -> str:
    """A program as it is sent: in one piece with what all of them share."""
    directory = resources.files("benchflow.planes.environment.helper")
    shared, own = ((directory / f"{name}{_SUFFIX[kind]}").read_text() for name in ("shared", operation))
    if kind == "node":
        return own.replace("./shared.mjs", "data:text/javascript;base64," + base64.b64encode(shared.encode()).decode())
    return shared + _OWN_IMPORT.sub("", own)
