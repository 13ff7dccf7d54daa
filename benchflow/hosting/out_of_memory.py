"""Tell an agent that was killed at the memory limit from one that survived while another process was killed.

The kernel counts the processes of a sandbox that it kills, and does not say which. If a turn ends well, its agent has
survived. If a turn fails and nothing was killed in it, it failed for another reason. In between, an agent may have died
behind a wrapper that reports some error, or hangs: then a tool call that it started after the kill proves that it
survived. Without that proof, the turn has measured the memory limit, and not the agent.

Counts are stored on the host before a turn begins, so that an attempt that resumes it starts from the same number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchflow.contracts.activities import StepInput
from benchflow.contracts.base import Model
from benchflow.contracts.failures import failure_of
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.rollout_records import TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import AgentError, SandboxError, SandboxLostError, SandboxMemoryError
from benchflow.host_files import write_record
from benchflow.hosting.hosted import Hosted
from benchflow.planes.sandbox.sandbox_memory import KillNote, make_memory_error
from benchflow.tasks.support import spell_key
from benchflow.trajectories.journal import NodeWriter

POLL_INTERVAL_SEC = 5.0
"""Seconds between two polls of the counters, by which a kill is known to precede the agent's next events."""

_MAY_BE_MEMORY = frozenset(
    {"agent", "agent_connection", "agent_exit", "agent_protocol", "agent_timeout", "model_endpoint"}
)
"""Categories of a turn's failure that a killed agent may cause. The others prove that it survived (it has used up its
budget, or printed too much), or are not the agent's failures.
"""

_BY_ENGINE = frozenset(
    {"user_message", "agent_error", "agent_timeout", "model_endpoint", "other_prefix", "service_died"}
)
"""Types of a turn's events that the engine writes, and that prove nothing about the agent."""


def make_session_note(rollout: Hosted, session: int) -> KillNote:
    """Return the note with the count of kills when the agent of session number `session` was last known to live."""
    return KillNote(_locate_note(rollout, f"session-{session}"))


def make_verifier_note(rollout: Hosted, step: int) -> KillNote:
    """Return the note with the count of kills before the verifier of step number `step`."""
    return KillNote(_locate_note(rollout, f"verify-{step}"))


def _locate_note(rollout: Hosted, name: str) -> Path:
    return rollout.sessions / f"{rollout.ref.episode}memory-{name}.json"


def make_kill_error(
    rollout: Hosted, use: MemoryUse, kills: int, error: str, log_tail: str | None
) -> SandboxMemoryError:
    """Return, not raise, the error for an agent that was killed at the memory limit.

    Args:
        rollout: The rollout.
        use: Memory counters of its sandbox.
        kills: Number of kills to report.
        error: Message of the error by which the agent's end was noticed.
        log_tail: End of the agent's log; None if there is none.
    """
    task = rollout.task
    key = spell_key(task, "sandbox.memory_mb")
    return SandboxMemoryError(
        f"{use.explanation(kills)}, and {error}",
        file=f"{task.name}/{task.config_file}",
        key=key,
        remedy=use.remedy(key),
        log_tail=log_tail,
    )


@asynccontextmanager
async def explain_losses(sandbox: Sandbox) -> AsyncIterator[None]:
    """Replace a `SandboxLostError` of the block by `SandboxMemoryError` if the kernel has killed for memory there."""
    try:
        yield
    except SandboxMemoryError:
        raise
    except SandboxLostError as error:
        use = None
        with suppress(SandboxError):
            use = await sandbox.memory_use()
        if (loss := make_memory_error(sandbox.ref.name, use)) is not None:
            raise loss from error
        raise


@asynccontextmanager
async def explain_agent_errors(rollout: Hosted, note: KillNote) -> AsyncIterator[None]:
    """Replace an `AgentError`, while a session opens, by `SandboxMemoryError` if the kernel has killed since the note.

    Args:
        rollout: The rollout, attached to its sandbox.
        note: Note of the count; it is started now unless an earlier attempt started it.
    """
    if not note.has_started:
        await note.start(rollout.sandbox)
    try:
        yield
    except AgentError as error:
        use = await rollout.sandbox.memory_use()
        if use is None or not (kills := note.count_kills(use)) or error.category not in _MAY_BE_MEMORY:
            raise
        raise make_kill_error(rollout, use, kills, error.message, error.log_tail) from error


class _Noticed(Model):
    """The last kill that was noticed in a turn."""

    kills: int = 0
    """Kills of the turn by then."""
    seq: int = 0
    """Number of the trajectory's next event then."""


class TurnMemory:
    """Watch over the kernel's kills in one turn, by which the turn's result is corrected.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: The step of the turn.
        writer: Writer of the turn's events.
    """

    def __init__(self, rollout: Hosted, work: StepInput, writer: NodeWriter) -> None:
        """Make it."""
        self._rollout = rollout
        self._sandbox = rollout.sandbox
        self._writer = writer
        # A replayed turn of the parent is no turn of this rollout, and has a note of its own.
        name = f"turn-{work.step.index}" if work.before is None else f"again-{work.step.index}"
        self._turn = KillNote(_locate_note(rollout, name))
        self._session = make_session_note(rollout, work.session.index) if work.session is not None else self._turn
        self._noticed_file = _locate_note(rollout, f"{name}-noticed")

    async def begin(self) -> None:
        """Start counting kills. Call it before the turn begins, and not when it is resumed."""
        await self._turn.start(self._sandbox)

    async def watch(self) -> None:
        """Poll the counters without end, and record each new count with the number of the agent's next event."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_SEC)
            # Errors of the sandbox are suppressed here: the turn itself meets them.
            with suppress(SandboxError):
                use = await self._sandbox.memory_use()
                if use is not None and (kills := self._turn.count_kills(use)) != self._read_noticed().kills:
                    write_record(self._noticed_file, _Noticed(kills=kills, seq=self._writer.events[1]).model_dump())

    async def judge(self, turn: TurnResult) -> TurnResult:
        """Return the turn's result, corrected for kills: with a `SandboxMemoryError` as its failure, or with a warning.

        It is unchanged if nothing was killed, or the turn waits for an answer.
        """
        use = await self._sandbox.memory_use() if turn.question is None else None
        if use is None:
            return turn
        kills, failure = self._turn.count_kills(use), turn.failure
        if failure is None:
            await self._session.start(self._sandbox)
        elif failure.category in _MAY_BE_MEMORY:
            if not any(event["type"] not in _BY_ENGINE for event in self._writer.written()):
                # The agent may have been dead before its prompt: killed while a verifier ran, for one.
                kills = self._session.count_kills(use)
            if kills and not self._has_survived(kills):
                error = make_kill_error(self._rollout, use, kills, failure.message, failure.log_tail)
                self._writer.add([{"type": "agent_error", "category": error.category, "message": error.message}])
                return turn.model_copy(update={"failure": failure_of(error, "execute")})
        if not kills:
            return turn
        said = use.explanation(kills)
        if failure is not None and failure.category == "service":
            failure = failure.model_copy(update={"message": f"{failure.message} ({said})"})
            return turn.model_copy(update={"failure": failure})
        warning = f"{said} during a turn; the agent went on"
        return turn.model_copy(update={"warnings": [*turn.warnings, warning]})

    def _has_survived(self, kills: int) -> bool:
        """Return whether the agent started a tool call after the last kill was recorded."""
        noticed = self._read_noticed()
        if noticed.kills != kills:
            return False
        return any(event["type"] == "tool_call" and event["seq"] >= noticed.seq for event in self._writer.written())

    def _read_noticed(self) -> _Noticed:
        try:
            return _Noticed.model_validate_json(self._noticed_file.read_bytes())
        except FileNotFoundError:
            return _Noticed()
