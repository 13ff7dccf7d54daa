"""Freezing: containers that stay paused until they are thawed, even if processes of the engine die meanwhile.

A mark in the sandbox's records distinguishes them from containers that a process left paused when it died: those are
unpaused by the next process that finds them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.docker.captures import pause
from benchflow.planes.sandbox.docker.container_copies import read_handle
from benchflow.planes.sandbox.docker.container_records import is_frozen, lock_for_capture, mark_frozen
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon


async def freeze(engine: DockerDaemon, container: str, handle: str) -> None:
    """Pause the container of a sandbox until `thaw`. One that is frozen already is success.

    Args:
        engine: The daemon.
        container: Id of the container.
        handle: Handle of its sandbox.

    Raises:
        SandboxLostError: The container does not run.
    """
    async with lock_for_capture(container):
        found = await engine.inspect(container)
        if not found["State"]["Running"]:
            raise SandboxLostError(f"the container {container[:12]} no longer runs")
        # Before the pause: a process that finds the container paused must see the mark.
        mark_frozen(handle, True)
        await run_to_completion(engine.call_entered(container, lambda client: pause(client, container)))


async def thaw(engine: DockerDaemon, container: str, handle: str) -> None:
    """Unpause the container of a sandbox and remove the mark. One that is not paused is success.

    Args:
        engine: The daemon.
        container: Id of the container.
        handle: Handle of its sandbox.
    """
    async with lock_for_capture(container):
        found = await engine.inspect(container)
        if found["State"]["Paused"]:
            await run_to_completion(engine.call_entered(container, lambda client: client.unpause(container)))
        mark_frozen(handle, False)


@asynccontextmanager
async def pause_meanwhile(engine: DockerDaemon, container: str) -> AsyncIterator[None]:
    """Pause a container during the block."""
    async with lock_for_capture(container):
        try:
            await run_to_completion(engine.call_entered(container, lambda client: pause(client, container)))
            yield
        finally:
            await run_to_completion(engine.call_entered(container, lambda client: client.unpause(container)))


async def unpause_orphan(engine: DockerDaemon, container: dict[str, Any]) -> None:
    """Unpause a container that a dead process has left paused.

    One that is being captured, or is frozen, is left alone.

    Args:
        engine: The daemon.
        container: `inspect` data of the container, or its row in a list.
    """
    async with lock_for_capture(container["Id"], wait=False) as held:
        if held and not is_frozen(read_handle(container)):
            with suppress(SandboxError):
                await engine.call(lambda client: client.unpause(container["Id"]))
