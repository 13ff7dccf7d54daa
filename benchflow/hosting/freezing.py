"""Freeze sandboxes that wait: beside the clean room of their rollout, or while children of it run.

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
from benchflow.hosting.clean_room import end_rooms
from benchflow.planes.sandbox import get_provider


def _can_freeze(sandbox: Sandbox) -> bool:
    return get_provider(sandbox.ref.provider).capabilities().freeze


async def freeze(sandbox: Sandbox) -> None:
    """Freeze a sandbox, where its provider can. A lost one does not run, either."""
    if _can_freeze(sandbox):
        with suppress(SandboxLostError):
            await sandbox.freeze()


@asynccontextmanager
async def freezing(sandbox: Sandbox) -> AsyncIterator[asyncio.Future[None]]:
    """Freeze a sandbox while a block goes on, which is to await the future before something else runs in its place.

    A room takes longer to start than a sandbox to freeze. At the end of the block it is frozen in any case.
    """
    frozen = asyncio.ensure_future(freeze(sandbox))
    try:
        yield frozen
    finally:
        await frozen


async def thaw(sandbox: Sandbox, results: Path) -> None:
    """Thaw a sandbox, if it is frozen, after its rollout's clean rooms have ended. results: the rollout's.

    A lost one is reported by the work that comes next: what was measured in a clean room stays measured.
    """
    if _can_freeze(sandbox) and await sandbox.is_frozen():
        await end_rooms(sandbox.ref.provider, results)
        with suppress(SandboxLostError):
            await sandbox.thaw()
