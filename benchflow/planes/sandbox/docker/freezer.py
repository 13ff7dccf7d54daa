"""Containers that stand still until they are asked to go on, across any number of processes that die meanwhile.

A mark in the sandbox's records tells them from those that a process which died has left paused, and that go on as soon
as anybody finds them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.docker.captures import pause
from benchflow.planes.sandbox.docker.copies import handle_of
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.records import capturing, is_frozen, mark_frozen


async def freeze(engine: Engine, container: str, handle: str) -> None:
    """Pause the container of a sandbox until `thaw`. One that is frozen is success. Raises `SandboxLostError`."""
    async with capturing(container):
        found = await engine.about(container, lambda client: client.inspect_container(container))
        if not found["State"]["Running"]:
            raise SandboxLostError(f"the container {container[:12]} no longer runs")
        # Before: whoever finds it paused must see why.
        mark_frozen(handle, True)
        await see_through(engine.about(container, lambda client: pause(client, container)))


async def thaw(engine: Engine, container: str, handle: str) -> None:
    """Have the container of a sandbox go on. One that is not paused is success."""
    async with capturing(container):
        found = await engine.about(container, lambda client: client.inspect_container(container))
        if found["State"]["Paused"]:
            await see_through(engine.about(container, lambda client: client.unpause(container)))
        mark_frozen(handle, False)


@asynccontextmanager
async def standing_still(engine: Engine, container: str) -> AsyncIterator[None]:
    """Pause a container for a moment."""
    async with capturing(container):
        try:
            await see_through(engine.about(container, lambda client: pause(client, container)))
            yield
        finally:
            await see_through(engine.about(container, lambda client: client.unpause(container)))


async def go_on(engine: Engine, container: dict[str, Any]) -> None:
    """Let a container go on that somebody who died has left paused.

    One that is being copied, or frozen, is left alone. container: as the daemon describes it.
    """
    async with capturing(container["Id"], wait=False) as held:
        if held and not is_frozen(handle_of(container)):
            with suppress(SandboxError):
                await engine.call(lambda client: client.unpause(container["Id"]))
