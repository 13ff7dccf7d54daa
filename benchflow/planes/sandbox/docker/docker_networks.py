"""Networks of sandboxes: none, or one bridge per stack on which containers cannot reach each other."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from benchflow.errors import SandboxError, SandboxStartError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.translation import ConflictError, NotFoundError

STACK_LABEL = "benchflow.stack"
"""Label of containers, networks and volumes: id of the stack that owns them."""

NO_ICC = {"com.docker.network.bridge.enable_icc": "false"}
"""Bridge option that turns off communication between containers."""


def format_bridge_name(stack: str) -> str:
    """Return the name of a stack's bridge; sandboxes without a stack share one."""
    return f"benchflow-{re.sub(r'[^A-Za-z0-9_.-]', '-', stack)[:12] or 'default'}"


class DockerNetworks:
    """The bridges of one daemon."""

    def __init__(self, engine: DockerDaemon) -> None:
        """Make it."""
        self._engine = engine

    @contextlib.asynccontextmanager
    async def hold(self, stack: str) -> AsyncIterator[None]:
        """Hold a shared lock in the block, so that `sweep` leaves the bridge while a container is attached to it."""
        async with hold_lock_async(self._lock(stack, "use"), shared=True):
            yield

    async def ensure(self, stack: str) -> str:
        """Return the name of the stack's bridge, created if missing. Raises `SandboxStartError` if it can't be."""
        name = format_bridge_name(stack)
        if await self._exists(name):
            return name
        # The daemon can create two networks of one name at the same moment; the lock prevents that.
        async with hold_lock_async(self._lock(stack, "make")):
            if not await self._exists(name):
                await self._create(name, stack)
        return name

    async def sweep(self, stack: str) -> None:
        """Remove the stack's bridge, unless a container of the stack is left or `hold` is held."""
        # Checked first without the lock, so that frequent sweeps do not block the start of containers.
        if not await self._find_unused(stack):
            return
        async with hold_lock_async(self._lock(stack, "use"), wait=False) as held:
            if not held:
                return
            for network in await self._find_unused(stack):
                with contextlib.suppress(NotFoundError):
                    await self._remove(network)

    async def _find_unused(self, stack: str) -> list[str]:
        """Return the ids of the stack's bridges; none if a container of the stack is left."""
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

    async def _create(self, name: str, stack: str) -> None:
        try:
            await self._engine.call(
                lambda client: client.create_network(
                    name, driver="bridge", options=NO_ICC, labels={STACK_LABEL: stack}, check_duplicate=True
                )
            )
        except ConflictError:
            return
        except SandboxError as error:
            raise SandboxStartError(
                f"the network {name} cannot be made: {error.message}",
                remedy="remove networks that nothing uses (`docker network prune`)",
            ) from error

    def _lock(self, stack: str, purpose: str) -> Path:
        return find_state_dir() / "locks" / f"{format_bridge_name(stack)}.{purpose}.lock"
