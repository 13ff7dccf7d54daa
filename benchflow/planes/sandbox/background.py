"""Commands of a sandbox that are started once and left running: agents, the way to their model, a world's services.

They stand on `exec_once`. Whoever starts one does not wait for its end, and any process finds it again by its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow.contracts.sandbox import Sandbox, SandboxExecResult

_LOOK_EVERY = 0.02


async def start_once(
    sandbox: Sandbox,
    key: str,
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str = "/",
) -> SandboxExecResult | None:
    """Start a command as root under a key, unless it was, and leave it running; how it ended, if it has already."""
    running = held(sandbox, key, command, env or {}, cwd=cwd)
    try:
        while not await sandbox.was_started(key):
            await asyncio.wait([running], timeout=_LOOK_EVERY)
            if running.done() and not await sandbox.was_started(key):
                running.result()
        return running.result() if running.done() else None
    finally:
        await leave(running)


def held(
    sandbox: Sandbox, key: str, command: Sequence[str], env: Mapping[str, str], *, cwd: str = "/"
) -> asyncio.Future[SandboxExecResult]:
    """Waits for a command's end, which is nobody's business who only starts it: leaving it leaves the command."""
    return asyncio.ensure_future(sandbox.exec_once(key, command, env=dict(env), cwd=cwd, user="root"))


async def leave(task: asyncio.Future[Any]) -> None:
    """Stop waiting for something, whatever it came to."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
