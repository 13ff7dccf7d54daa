"""Freeze sandboxes that wait for the clean room or the children of their rollout, and thaw them.

So a rollout has one running sandbox at a time, and `-n` bounds those of a job. A crash may leave a sandbox frozen; the
next activity that works in it thaws it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxLostError
from benchflow.hosting.clean_room import remove_rooms
from benchflow.planes.sandbox import get_provider


def _can_freeze(sandbox: Sandbox) -> bool:
    return get_provider(sandbox.ref.provider).capabilities().freeze


async def freeze(sandbox: Sandbox) -> None:
    """Freeze a sandbox, if its provider can. A lost sandbox is success: it does not run, either."""
    if _can_freeze(sandbox):
        with suppress(SandboxLostError):
            await sandbox.freeze()


@asynccontextmanager
async def freeze_meanwhile(sandbox: Sandbox) -> AsyncIterator[asyncio.Future[None]]:
    """Start to freeze a sandbox, and yield the future of that: a clean room can start in parallel, which takes longer.

    The block awaits the future before anything runs in the room. The sandbox is frozen at the end, and is not thawed.
    """
    frozen = asyncio.ensure_future(freeze(sandbox))
    try:
        yield frozen
    finally:
        await frozen


async def thaw(sandbox: Sandbox, results: Path) -> None:
    """Remove the rollout's clean rooms and thaw its sandbox, if that is frozen; else do nothing.

    A sandbox that is found lost when it is thawed raises nothing here: rewards from a clean room stay valid, and the
    next call of the sandbox raises.

    Args:
        sandbox: The rollout's sandbox.
        results: Directory of the rollout's results.
    """
    if _can_freeze(sandbox) and await sandbox.is_frozen():
        await remove_rooms(sandbox.ref.provider, results)
        with suppress(SandboxLostError):
            await sandbox.thaw()
