"""End the processes that an agent has left, stop the daemons that start jobs, and describe what still runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, SandboxLostError, VerifierError, VerifierMemoryError
from benchflow.planes.reward.hardening.hardening_record import MAX_NAMED
from benchflow.planes.reward.hardening.judgement import PROCESSES
from benchflow.planes.reward.hardening.verifier_dependencies import SCHEDULERS

ALTERED = "code was put into a process of the world"
"""Text of a finding about a process whose code another process has changed."""


async def kill_strangers(sandbox: Sandbox, found: list[HardeningFinding], known: Sequence[RunningProcess] = ()) -> int:
    """Kill what the agent left running, add the finding about it to `found`, and return the number of processes.

    Args:
        sandbox: Sandbox of the agent.
        found: Findings so far.
        known: Processes that ran a moment before, some of which the finding names.

    Raises:
        VerifierError: They can't be killed, or multiply faster than they are killed.
    """
    with translate_kill_errors():
        killed = await sandbox.kill_processes()
    if killed:
        what = "a process" if killed == 1 else f"{killed} processes"
        if named := list(dict.fromkeys(process.command for process in known if not process.is_altered)):
            what += f": {', '.join(named[:MAX_NAMED])}" + (", …" if len(named) > MAX_NAMED else "")
        found.append(HardeningFinding(item=PROCESSES, action="killed", detail=what))
    return killed


@contextmanager
def translate_kill_errors() -> Iterator[None]:
    """Turn errors of a block that kills an agent's processes into `VerifierError`.

    Lost sandboxes and retryable errors are raised as they are. Any other `SandboxError` would lead to another attempt
    in a fresh sandbox, and so be the agent's reward for a fork bomb.
    """
    try:
        yield
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable:
            raise
        raise VerifierError(error.message, remedy="see what the agent has left running") from error


async def list_unaltered_strangers(sandbox: Sandbox) -> list[RunningProcess]:
    """Return the processes that are not the world's own, without those of the world whose code was changed."""
    return [process for process in await sandbox.strangers() if not process.is_altered]


def note_running(process: RunningProcess, when: str = "beside the verifier") -> HardeningFinding:
    """Return the finding about a process that is not the world's, and runs while the verifier does, or after it."""
    return HardeningFinding(item=PROCESSES, action="found", detail=f"runs {when}: {process.command}")


def note_altered(process: RunningProcess, is_left: bool) -> HardeningFinding:
    """Return the finding about a process whose code was changed, and which was killed or `is_left`."""
    detail = f"{ALTERED}: {process.command}"
    return HardeningFinding(item=PROCESSES, action="found" if is_left else "killed", detail=detail, weight="tampering")


@asynccontextmanager
async def refuse_memory_kills(sandbox: Sandbox) -> AsyncIterator[None]:
    """Raise `VerifierMemoryError` if out-of-memory kills occur during the block, as a survey may then be incomplete."""
    before = await sandbox.memory_use()
    yield
    now = await sandbox.memory_use()
    if before is not None and now is not None and (kills := now.kills_since(before.kills)):
        raise VerifierMemoryError(
            f"{now.explanation(kills)} while it was made ready for the verifier",
            key="memory_mb",
            remedy=now.remedy("memory_mb"),
        )


def format_scheduler_signal(name: str) -> str:
    """Return a script that sends a signal (`STOP`, `CONT`) to the daemons that start scheduled jobs."""
    return (
        "for p in /proc/[0-9]*; do c=; { read -r c <$p/comm; } 2>/dev/null; "
        f"case $c in {'|'.join(SCHEDULERS)}) kill -{name} ${{p#/proc/}};; esac; done"
    )
