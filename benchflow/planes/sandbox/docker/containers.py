"""Finding, creating and removing containers, safe against other processes that do the same or have died at it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import BenchFlowError, SandboxError, SandboxLostError, SandboxStartError
from benchflow.planes.sandbox.docker import container_config, container_entrypoint, freezer
from benchflow.planes.sandbox.docker.captures import Captures
from benchflow.planes.sandbox.docker.container_copies import find_engine_volume, read_handle
from benchflow.planes.sandbox.docker.container_records import forget_container
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.docker_networks import STACK_LABEL, DockerNetworks
from benchflow.planes.sandbox.docker.restores import DockerRestores
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.docker.translation import ConflictError, NotFoundError

log = logging.getLogger(__name__)

MAX_REMOVALS = 5
"""Maximum number of attempts to remove a container."""


class Containers:
    """The containers of one daemon, by the names of their sandboxes."""

    def __init__(
        self,
        engine: DockerDaemon,
        networks: DockerNetworks,
        captures: Captures,
        starter: Starter,
        on_removal: Callable[[str], None],
    ) -> None:
        """Make it.

        Args:
            engine: The daemon.
            networks: Its networks.
            captures: Its captures.
            starter: Starts containers.
            on_removal: Callback that receives the handle of a sandbox before its container is removed.
        """
        self._engine = engine
        self._networks = networks
        self._captures = captures
        self._starter = starter
        self._on_removal = on_removal
        self.restores = DockerRestores(engine, starter, self.discard)

    async def find_for(self, spec: SandboxSpec) -> dict[str, Any] | None:
        """Return the running container with the name of a spec, as `inspect` data; None if there is none.

        One that was created and not started is started, and a frozen one is thawed. One that has stopped, or can't
        start, is removed, and counts as none.

        Raises:
            SandboxStartError: The container belongs to another stack.
        """
        found = await self.restores.find(spec.name)
        if found is None:
            return None
        if container_config.read_label(found, STACK_LABEL) != spec.labels.get(STACK_LABEL, ""):
            raise SandboxStartError(
                f"a container named {spec.name} exists and does not belong to this stack",
                remedy=f"remove it (`docker rm -f {spec.name}`) or choose another job name",
            )
        container = str(found["Id"])
        state = found["State"]
        try:
            if state["Running"]:
                # A start means use, and the last rollout may have been terminated while the container was frozen.
                await freezer.thaw(self._engine, container, read_handle(found))
                return found
            if state["Status"] == "created":
                # Created by a process that has died, or is about to start it: a second start does nothing.
                await self._starter.start(container)
                return found
        except SandboxError as error:
            if error.is_outage:
                raise
            log.info("sandbox %s is made anew: %s", spec.name, error.message)
        await self.remove(container)
        return None

    async def create(self, spec: SandboxSpec, info: dict[str, Any], secret_env: Mapping[str, str]) -> str:
        """Create and start a container, and return its id. If another process was faster, return the other's.

        Args:
            spec: The sandbox.
            info: The daemon's `info`.
            secret_env: Secrets of the entrypoint, of which only the names are used here.

        Raises:
            SandboxStartError: The container does not come up, or the name belongs to another stack.
            SandboxBusyError: It could not be created in time.
        """
        first = await container_entrypoint.define_first_process(self._engine, spec, secret_env)
        stack = spec.labels.get(STACK_LABEL, "")
        # Only below the image's ENTRYPOINT, which may leave orphans and ignore SIGTERM: the daemon's init handles both.
        init = "command" in first and "entrypoint" not in first
        pause = 0.01
        async with (
            self._networks.hold(stack),
            self._captures.hold(stack),
            container_config.limit_creation(self._engine),
        ):
            image = await self._captures.copy_without_volumes(spec.image.reference, stack)
            spec = spec.model_copy(update={"image": spec.image.model_copy(update={"reference": image})})
            while True:
                public = spec.network_mode == "public"
                network = await self._networks.ensure(stack) if public else "none"
                try:
                    container = await container_config.create_container(self._engine, spec, network, info, init, first)
                except ConflictError:
                    # Another process was faster. A name is taken shortly before its container can be found.
                    if (found := await self.find_for(spec)) is not None:
                        return str(found["Id"])
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.5)
                    continue
                try:
                    await self._starter.start(container)
                    return container
                except BenchFlowError as error:
                    wrong = await container_config.explain_failed_start(self._engine, container, error, spec.entrypoint)
                    await self.remove(container)
                    if init and container_config.lacks_init(error):
                        init = False
                    elif not container_config.lacks_network(error):
                        raise wrong from error

    async def remove(self, name: str) -> None:
        """Remove a container, by name or id, with its volume, lock file and unused fork image. Missing is success."""
        for attempt in range(MAX_REMOVALS):
            try:
                # Before `inspect`, which blocks if a process inside has stopped an exec on its way in.
                await self._engine.kill(name)
                found = await self._engine.call(lambda client: client.inspect_container(name))
                self._on_removal(read_handle(found))
                forget_container(found["Id"])
                await self.discard(found)
            except SandboxLostError:
                return
            except SandboxError:
                # Another process is removing it, or a mount is still busy: either passes by itself.
                if attempt == MAX_REMOVALS - 1:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def discard(self, container: dict[str, Any]) -> None:
        """Remove a container with its volume, and the image that was made for it unless others need that.

        Args:
            container: `inspect` data of the container.
        """
        await self._engine.call(lambda client: client.remove_container(container["Id"], force=True, v=True))
        if (room := find_engine_volume(container)) is not None:
            with contextlib.suppress(NotFoundError, ConflictError):
                await self._engine.call(lambda client: client.remove_volume(room))
        await self._captures.release(container["Image"])
