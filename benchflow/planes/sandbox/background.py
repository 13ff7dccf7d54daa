"""Commands of a sandbox that are started once and left running: agents, their relay to the model, a world's services.

They use `exec_once`, so that the caller need not wait for the end, and any process finds the command by its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow.contracts.sandbox import Sandbox, SandboxExecResult

_POLL_INTERVAL = 0.02
"""Poll interval in seconds."""


async def start_once(
    sandbox: Sandbox,
    key: str,
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str = "/",
) -> SandboxExecResult | None:
    """Start a command as root under a key, unless it was started, and leave it running.

    Args:
        sandbox: The sandbox.
        key: Idempotency key of the command.
        command: Program and arguments.
        env: Variables added to its environment.
        cwd: Working directory.

    Returns:
        The result, if the command has already ended; else None.
    """
    running = run_as_root(sandbox, key, command, env or {}, cwd=cwd)
    try:
        while not await sandbox.was_started(key):
            await asyncio.wait([running], timeout=_POLL_INTERVAL)
            if running.done() and not await sandbox.was_started(key):
                running.result()
        return running.result() if running.done() else None
    finally:
        await cancel_and_wait(running)


def run_as_root(
    sandbox: Sandbox, key: str, command: Sequence[str], env: Mapping[str, str], *, cwd: str = "/"
) -> asyncio.Future[SandboxExecResult]:
    """Return a future of `exec_once` of a command as root. Cancelling it ends the wait, not the command."""
    return asyncio.ensure_future(sandbox.exec_once(key, command, env=dict(env), cwd=cwd, user="root"))


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task or future and wait for its end, ignoring its result or error."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
