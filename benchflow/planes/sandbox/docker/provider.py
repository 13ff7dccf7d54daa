"""`DockerProvider`: finds, starts and removes containers.

The truth about a sandbox is the daemon's (container name and labels) and the host's records; what this object
caches (the client, one connection per container) only saves time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow.contracts.sandbox import (
    Capabilities,
    EntrypointState,
    ImageConfig,
    ImageRef,
    OwnedSandbox,
    SandboxRef,
    SandboxSpec,
)
from benchflow.errors import (
    BenchFlowError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SandboxUnavailableError,
    UnsupportedFeatureError,
)
from benchflow.planes.sandbox.docker import entrypoint, launch
from benchflow.planes.sandbox.docker.engine import Conflict, Engine
from benchflow.planes.sandbox.docker.images import Images
from benchflow.planes.sandbox.docker.networks import STACK_LABEL, Networks
from benchflow.planes.sandbox.docker.records import container_records, forget
from benchflow.planes.sandbox.docker.sandbox import Connection, DockerSandbox
from benchflow.planes.sandbox.records import file_lock

log = logging.getLogger(__name__)

REMOVE_TRIES = 5

CREATE_PATIENCE = 60.0
"""Seconds for a name to be free or its holder to be found."""


class _Held:
    """What belongs to one event loop: its locks and sockets cannot be used from another."""

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.starting: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()


class DockerProvider:
    """Sandboxes as containers of the Docker daemon that DOCKER_HOST names, by default the local one."""

    name = "docker"

    def __init__(self) -> None:
        self._engine = Engine()
        self._images = Images(self._engine)
        self._networks = Networks(self._engine)
        self._info: dict[str, Any] | None = None
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Held] = weakref.WeakKeyDictionary()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            users=True,
            cpu_limit=True,
            memory_limit=True,
            storage_limit=False,
            dockerfile=True,
            # A daemon elsewhere has another file system.
            mounts=self._engine.is_local,
            isolation="container",
        )

    async def check(self) -> None:
        info = await self._engine.call(lambda client: client.info())
        if info["OSType"] != "linux":
            raise SandboxUnavailableError(
                f"the Docker daemon runs {info['OSType']} containers",
                remedy="switch it to Linux containers",
            )
        self._info = info

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        return await self._images.build(config, log)

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> DockerSandbox:
        if spec.network_mode not in self.capabilities().network_modes:
            raise UnsupportedFeatureError(
                f"the docker sandbox has no network mode {spec.network_mode!r}",
                key="network_mode",
                remedy='use "public" or "no-network"',
            )
        info, told = await self._daemon(), dict(secrets or {})
        lock = self._held().starting.setdefault(spec.name, asyncio.Lock())
        async with lock:
            handle = await self._find(spec) or await self._create(spec, info, told)
            connection = self._connection(handle)
            try:
                workdir = await connection.prepare(spec)
                if spec.runs_entrypoint:
                    await self._begin(spec, handle, told)
            except SandboxError as error:
                found = await launch.start_error(self._engine, handle, error, spec.entrypoint)
                await self.remove(handle)
                raise found from error
        ref = SandboxRef(
            provider=self.name,
            name=spec.name,
            handle=handle,
            host_id=host_id,
            queue=queue,
            generation=generation,
            workdir=workdir,
            warnings=launch.warnings_of(spec, info),
        )
        return DockerSandbox(self._engine, connection, ref, self.remove)

    async def entrypoint_state(self, name: str) -> EntrypointState:
        container = await self._engine.call(lambda client: client.inspect_container(name))
        return await entrypoint.state_of(self._engine, self._connection(container["Id"]).executions, container)

    async def end_entrypoint(self, name: str) -> None:
        container = await self._engine.call(lambda client: client.inspect_container(name))
        if entrypoint.form_of(container) == "first":
            raise UnsupportedFeatureError(
                "an entrypoint that is the sandbox's first process ends with the sandbox",
                key="entrypoint",
                remedy="remove the sandbox, or run the entrypoint below",
            )
        connection = self._connection(container["Id"])
        await connection.executions.kill_once(entrypoint.KEY)
        await connection.processes.kill_world()

    async def attach(self, ref: SandboxRef) -> DockerSandbox:
        held = self._held().connections.get(ref.handle)
        # A shell that answers proves that the container runs, sooner than the daemon could say so.
        if held is None or not await held.shell.alive():
            state = await self._engine.call(lambda client: client.inspect_container(ref.handle))
            if not state["State"]["Running"]:
                raise SandboxLostError(
                    f"the sandbox {ref.name} no longer runs (exit status {state['State']['ExitCode']})"
                )
        return DockerSandbox(self._engine, self._connection(ref.handle), ref, self.remove)

    async def remove(self, name: str) -> None:
        for attempt in range(REMOVE_TRIES):
            try:
                container = (await self._engine.call(lambda client: client.inspect_container(name)))["Id"]
                self._drop(container)
                forget(container)
                await self._engine.call(
                    lambda client, it=container: client.remove_container(it, force=True, v=True)  # type: ignore[misc]
                )
            except SandboxLostError:
                return
            except SandboxError:
                # Another process is removing it, or a mount is still busy: either ends by itself.
                if attempt == REMOVE_TRIES - 1:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def remove_image(self, image: ImageRef) -> None:
        if image.built:
            await self._images.remove(image.reference)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        label = {"label": f"{STACK_LABEL}={stack_id}"}
        rows = await self._engine.call(lambda client: client.containers(all=True, filters=label))
        await self._drop_dead({row["Id"] for row in rows})
        return [
            OwnedSandbox(name=row["Names"][0].lstrip("/"), handle=row["Id"], labels=row["Labels"])
            for row in rows
            if row["Names"]
        ]

    async def sweep(self, stack_id: str) -> None:
        await self._networks.sweep(stack_id)

    async def close(self) -> None:
        for connection in self._held().connections.values():
            await connection.executions.settle()
            connection.close()
        self._held().connections.clear()
        self._engine.close()

    # --- starting ------------------------------------------------------------------------------------

    async def _find(self, spec: SandboxSpec) -> str | None:
        """The id of the running container of this name. One that stopped, or cannot start, is removed."""
        try:
            found = await self._engine.call(lambda client: client.inspect_container(spec.name))
        except SandboxLostError:
            return None
        labels = found["Config"]["Labels"] or {}
        if labels.get(STACK_LABEL) != spec.labels.get(STACK_LABEL):
            raise SandboxStartError(
                f"a container named {spec.name} exists and does not belong to this stack",
                remedy=f"remove it (`docker rm -f {spec.name}`) or choose another job name",
            )
        container = str(found["Id"])
        state = found["State"]
        if state["Running"] and not state["Paused"]:
            return container
        try:
            if state["Paused"]:
                await self._engine.call(lambda client: client.unpause(container))
                return container
            if state["Status"] == "created":
                # Made by a process that died, or that is about to start it: starting twice is one start.
                await self._engine.call(lambda client: client.start(container))
                return container
        except SandboxError as error:
            log.info("sandbox %s is made anew: %s", spec.name, error.message)
        await self.remove(container)
        return None

    async def _begin(self, spec: SandboxSpec, handle: str, told: dict[str, str]) -> None:
        """Let the entrypoint go on with its secrets, or start it: once, whoever else does the same now."""
        connection = self._connection(handle)
        if spec.entrypoint == "below":
            await entrypoint.begin_below(self._engine, connection.executions, spec, told)
            return
        async with file_lock(container_records(handle) / "entrypoint.lock"):
            await entrypoint.tell(self._engine, connection.shell, handle, told)

    async def _create(self, spec: SandboxSpec, info: dict[str, Any], told: dict[str, str]) -> str:
        first = await entrypoint.first_process(self._engine, spec, told)
        stack = spec.labels.get(STACK_LABEL, "")
        init = True
        pause = 0.01
        async with self._networks.hold(stack), asyncio.timeout(CREATE_PATIENCE):
            while True:
                public = spec.network_mode == "public"
                network = await self._networks.ensure(stack) if public else "none"
                try:
                    container = await launch.create(self._engine, spec, network, info, init, first)
                except Conflict:
                    # Another process was faster. A name is taken a moment before its container can be found.
                    if (found := await self._find(spec)) is not None:
                        return found
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.5)
                    continue
                try:
                    await self._engine.call(lambda client, it=container: client.start(it))  # type: ignore[misc]
                    return container
                except BenchFlowError as error:
                    wrong = await launch.start_error(self._engine, container, error, spec.entrypoint)
                    await self.remove(container)
                    if init and launch.no_init(error):
                        init = False
                    elif not launch.no_network(error):
                        raise wrong from error

    async def _daemon(self) -> dict[str, Any]:
        if self._info is None:
            await self.check()
        assert self._info is not None
        return self._info

    # --- connections ---------------------------------------------------------------------------------

    def _held(self) -> _Held:
        return self._by_loop.setdefault(asyncio.get_running_loop(), _Held())

    def _connection(self, container: str) -> Connection:
        held = self._held().connections
        if container not in held:
            held[container] = Connection(self._engine, container)
        return held[container]

    def _drop(self, container: str) -> None:
        connection = self._held().connections.pop(container, None)
        if connection is not None:
            connection.close()

    async def _drop_dead(self, living: set[str]) -> None:
        """Let go of containers that another process has removed."""
        for container in set(self._held().connections) - living:
            with contextlib.suppress(SandboxError):
                await self._engine.call(lambda client, it=container: client.inspect_container(it))  # type: ignore[misc]
                continue
            self._drop(container)
            forget(container)
