"""The steps of a Python agent's turn, each recorded on this host once it is done: no later attempt repeats it.

A step that was started and not recorded is started again under the same name: a command of the sandbox attaches to its
execution, anything else is done once more. If two workers run one turn, the first record of a step counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from benchflow.contracts.ids import short_hash
from benchflow.errors import AgentDivergedError, AgentExitError, AgentOutputError
from benchflow.planes.agent.bounds import MAX_LINE, MAX_OUTPUT
from benchflow.planes.agent.notes import Message, Notes

MEMORY = "memory"
"""Name of the note with a session's memory at its opening."""

OVER = "over"
"""Name of the note that a session's agent was ended."""

EXEC = "exec"
"""Kind of a step that is a command in the sandbox."""

MAX_STEPS = 100_000
"""Maximum steps of one turn; each takes two files of this host."""

_STARTED = "started-"


def read_recorded_steps(notes: Notes) -> Iterator[Message]:
    """Yield the recorded steps of a session, in their order."""
    for turn, number in sorted(_parse_numbers(path) for path in notes.directory.glob("step-*.json")):
        yield {"turn": turn, "step": number} | (notes.read(f"step-{turn}-{number}") or {})


def list_started_commands(notes: Notes, turn: int | None = None) -> list[str]:
    """Return the names of the commands that were started, in their order.

    Args:
        notes: Notes of the session.
        turn: Turn of the commands; None for all turns.
    """
    started = notes.directory.glob(f"{_STARTED}step-{'*' if turn is None else turn}-*.json")
    names = [path.stem.removeprefix(_STARTED) for path in sorted(started, key=_parse_numbers)]
    return [name for name in names if (notes.read(f"{_STARTED}{name}") or {}).get("kind") == EXEC]


def _parse_numbers(path: Path) -> tuple[int, int]:
    """Return turn and step of a note's file."""
    _, turn, number = path.stem.rsplit("-", 2)
    return int(turn), int(number)


class Steps:
    """The steps of one turn, in the order in which the agent requests them."""

    def __init__(self, notes: Notes, turn: int) -> None:
        """Make it, before the first step. turn: number of the turn."""
        self._notes = notes
        self._turn = turn
        self._next = 0
        self._size = 0
        # Another worker may have ended the turn while this one was frozen.
        self._ends = [notes.get_path(name) for name in (f"ended-{turn}", f"stop-{turn}", OVER)]

    def make_name(self) -> str:
        """Return the name of the next step: another one at each call, and the same ones in each attempt.

        Raises:
            AgentOutputError: There are too many steps.
        """
        self._next += 1
        if self._next > MAX_STEPS:
            raise AgentOutputError(f"the agent took more than {MAX_STEPS} steps in one turn")
        return f"step-{self._turn}-{self._next}"

    async def take(self, name: str, what: Message, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do a step, unless it is recorded, and return its result.

        Args:
            name: From `make_name`.
            what: The kind of the step, and all that it depends on.
            act: Callback that does it, and returns JSON.

        Raises:
            AgentDivergedError: An earlier attempt took another step in its place.
            AgentExitError: The result is not JSON.
            AgentOutputError: The result is too large.
            CancelledError: The turn is over, and the step is not recorded.
        """
        identity, kind, started = short_hash(repr(sorted(what.items())), 16), what["kind"], f"{_STARTED}{name}"
        done = self._notes.read(name)
        if done is None and any(end.exists() for end in self._ends):
            raise asyncio.CancelledError
        before = self._notes.write_once(started, {"kind": kind, "is": identity})
        if before["is"] != identity:
            raise AgentDivergedError(
                f"the agent did otherwise when its turn was taken again: {before['kind']} before, {kind} now ({name})",
                remedy="let steps depend on the prompt, `memory` and earlier steps only; "
                "wrap what differs from run to run (time, random numbers) in `turn.once`",
            )
        if done is None:
            done = self._notes.write_once(name, {"kind": kind, "result": self._check(kind, await act())})
        return done["result"]

    def _check(self, kind: str, result: Any) -> Any:
        """Return a step's result, after a check that it is JSON and not too large."""
        try:
            size = len(json.dumps(result, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise AgentExitError(
                f"the result of a step ({kind}) is no JSON: {error}", remedy="return plain values"
            ) from error
        self._size += size
        # The sandbox limits the output of a command.
        if (size > MAX_LINE and kind != EXEC) or self._size > MAX_OUTPUT:
            raise AgentOutputError(
                f"the steps of the agent give more than {MAX_LINE} bytes at once, or {MAX_OUTPUT} in a turn",
                remedy="keep what is large in files of the sandbox",
            )
        return result
