"""Networks: none, or one engine bridge per stack on which containers cannot reach each other."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from benchflow.errors import SandboxError, SandboxStartError
from benchflow.paths import state_dir
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.translation import Conflict, NotFound
from benchflow.planes.sandbox.records import file_lock

STACK_LABEL = "benchflow.stack"
NO_ICC = {"com.docker.network.bridge.enable_icc": "false"}


def bridge_name(stack: str) -> str:
    """The name of a stack's bridge; sandboxes without a stack share one."""
    return f"benchflow-{re.sub(r'[^A-Za-z0-9_.-]', '-', stack)[:12] or 'default'}"


class Networks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.asynccontextmanager
    async def hold(self, stack: str) -> AsyncIterator[None]:
        """No sweep of this stack while a container is being attached to its bridge."""
        async with file_lock(self._lock(stack, "use"), shared=True):
            yield

    async def ensure(self, stack: str) -> str:
        """The name of the stack's bridge, made if missing."""
        name = bridge_name(stack)
        if await self._exists(name):
            return name
        # The daemon allows two networks of one name when they are made at the same moment; the lock does not.
        async with file_lock(self._lock(stack, "make")):
            if not await self._exists(name):
                await self._make(name, stack)
        return name

    async def sweep(self, stack: str) -> None:
        """Remove the stack's bridge unless a container of the stack is left or one is starting."""
        # Looked at first without the lock, so that sweeping often never keeps a container from starting.
        if not await self._unused(stack):
            return
        async with file_lock(self._lock(stack, "use"), wait=False) as held:
            if not held:
                return
            for network in await self._unused(stack):
                with contextlib.suppress(NotFound):
                    await self._remove(network)

    async def _unused(self, stack: str) -> list[str]:
        """The ids of the stack's bridges, if no container of the stack is left."""
        label = {"label": f"{STACK_LABEL}={stack}"}
        if await self._engine.call(lambda client: client.containers(all=True, filters=label)):
            return []
        found = await self._engine.call(lambda client: client.networks(filters=label))
        return [network["Id"] for network in found]

    async def _remove(self, network: str) -> None:
        await self._engine.call(lambda client: client.remove_network(network))

    async def _exists(self, name: str) -> bool:
        found = await self._engine.call(lambda client: client.networks(names=[name]))
        # The daemon's filter also finds names that merely contain this one.
        return any(network["Name"] == name for network in found)

    async def _make(self, name: str, stack: str) -> None:
        try:
            await self._engine.call(
                lambda client: client.create_network(
                    name, driver="bridge", options=NO_ICC, labels={STACK_LABEL: stack}, check_duplicate=True
                )
            )
        except Conflict:
            return
        except SandboxError as error:
            raise SandboxStartError(
                f"the network {name} cannot be made: {error.message}",
                remedy="remove networks that nothing uses (`docker network prune`)",
            ) from error

    def _lock(self, stack: str, purpose: str) -> Path:
        return state_dir() / "locks" / f"{bridge_name(stack)}.{purpose}.lock"
