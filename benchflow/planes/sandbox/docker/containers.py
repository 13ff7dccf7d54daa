"""Finding, making and removing the containers of sandboxes, whoever else does the same or has died at it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import BenchFlowError, SandboxError, SandboxLostError, SandboxStartError
from benchflow.planes.sandbox.docker import entrypoint, freezer, launch
from benchflow.planes.sandbox.docker.captures import Captures
from benchflow.planes.sandbox.docker.copies import handle_of, room_of
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.networks import STACK_LABEL, Networks
from benchflow.planes.sandbox.docker.records import forget_container
from benchflow.planes.sandbox.docker.restores import Restores
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.docker.translation import Conflict, NotFound

log = logging.getLogger(__name__)

REMOVE_TRIES = 5


class Containers:
    """The containers of one daemon.

    Args:
        on_removal: Called with the handle of a sandbox whose container is removed.
    """

    def __init__(
        self,
        engine: Engine,
        networks: Networks,
        captures: Captures,
        starter: Starter,
        on_removal: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._networks = networks
        self._captures = captures
        self._starter = starter
        self._on_removal = on_removal
        self.restores = Restores(engine, starter, self.discard)

    async def find_for(self, spec: SandboxSpec) -> dict[str, Any] | None:
        """Return the running container of this name. One that stopped, or cannot start, is removed."""
        found = await self.restores.find(spec.name)
        if found is None:
            return None
        if stack_of(found) != spec.labels.get(STACK_LABEL, ""):
            raise SandboxStartError(
                f"a container named {spec.name} exists and does not belong to this stack",
                remedy=f"remove it (`docker rm -f {spec.name}`) or choose another job name",
            )
        container = str(found["Id"])
        state = found["State"]
        try:
            if state["Running"]:
                # Whoever starts it wants to use it: its last rollout may have been terminated while it was frozen.
                await freezer.thaw(self._engine, container, handle_of(found))
                return found
            if state["Status"] == "created":
                # Made by a process that died, or that is about to start it: starting twice is one start.
                await self._starter.start(container)
                return found
        except SandboxError as error:
            if error.is_outage:
                raise
            log.info("sandbox %s is made anew: %s", spec.name, error.message)
        await self.remove(container)
        return None

    async def create(self, spec: SandboxSpec, info: dict[str, Any], told: dict[str, str]) -> str:
        """Make and start a container; return its id. info: what the daemon says of itself; told: secrets."""
        first = await entrypoint.first_process(self._engine, spec, told)
        stack = spec.labels.get(STACK_LABEL, "")
        # An image's own program may leave orphans, and need not obey SIGTERM.
        init = "command" in first and "entrypoint" not in first
        pause = 0.01
        async with self._networks.hold(stack), self._captures.using(stack), launch.creating(self._engine):
            image = await self._captures.without_volumes(spec.image.reference, stack)
            spec = spec.model_copy(update={"image": spec.image.model_copy(update={"reference": image})})
            while True:
                public = spec.network_mode == "public"
                network = await self._networks.ensure(stack) if public else "none"
                try:
                    container = await launch.create(self._engine, spec, network, info, init, first)
                except Conflict:
                    # Another process was faster. A name is taken a moment before its container can be found.
                    if (found := await self.find_for(spec)) is not None:
                        return str(found["Id"])
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.5)
                    continue
                try:
                    await self._starter.start(container)
                    return container
                except BenchFlowError as error:
                    wrong = await launch.start_error(self._engine, container, error, spec.entrypoint)
                    await self.remove(container)
                    if init and launch.no_init(error):
                        init = False
                    elif not launch.no_network(error):
                        raise wrong from error

    async def remove(self, name: str) -> None:
        """Remove one container, by its name or id, with all that is kept of its sandbox. Missing is success."""
        for attempt in range(REMOVE_TRIES):
            try:
                # Before it is looked at: a process inside may have stopped one that was to enter.
                await self._engine.kill(name)
                found = await self._engine.call(lambda client: client.inspect_container(name))
                self._on_removal(handle_of(found))
                forget_container(found["Id"])
                await self.discard(found)
            except SandboxLostError:
                return
            except SandboxError:
                # Another process is removing it, or a mount is still busy: either ends by itself.
                if attempt == REMOVE_TRIES - 1:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def discard(self, container: dict[str, Any]) -> None:
        """Remove a container, and what was made for it and nothing else needs."""
        await self._engine.call(lambda client: client.remove_container(container["Id"], force=True, v=True))
        if (room := room_of(container)) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await self._engine.call(lambda client: client.remove_volume(room))
        await self._captures.release(container["Image"])


def stack_of(container: dict[str, Any]) -> str:
    """Return the stack that a container belongs to. container: as the daemon describes it."""
    return str((container["Config"]["Labels"] or {}).get(STACK_LABEL, ""))
