"""`DockerProvider`: finds, starts and removes containers.

The truth about a sandbox is the daemon's (container name and labels) and the host's records; what this object
caches (the client, one connection per container) only saves time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Capabilities, EntrypointState, OwnedSandbox, SandboxRef, SandboxSpec
from benchflow.errors import (
    BenchFlowError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SandboxUnavailableError,
    UnsupportedFeatureError,
)
from benchflow.planes.sandbox.docker import entrypoint, freezer, launch, uppers
from benchflow.planes.sandbox.docker.captures import PART_LABEL, Captures
from benchflow.planes.sandbox.docker.copies import handle_of, room_of
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.forks import Forks
from benchflow.planes.sandbox.docker.images import Images
from benchflow.planes.sandbox.docker.memory import lost_error
from benchflow.planes.sandbox.docker.networks import STACK_LABEL, Networks
from benchflow.planes.sandbox.docker.packs import Packs
from benchflow.planes.sandbox.docker.records import container_records, forget, is_frozen
from benchflow.planes.sandbox.docker.restores import SUFFIX, Restores, forget_restores
from benchflow.planes.sandbox.docker.sandbox import Connection, DockerSandbox
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.docker.translation import Conflict, NotFound
from benchflow.planes.sandbox.records import file_lock
from benchflow.planes.sandbox.scratch import clear_scratch

log = logging.getLogger(__name__)

REMOVE_TRIES = 5


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
        self._captures = Captures(self._engine, self._images, self._daemon)
        self._starter = Starter(self._engine, self._daemon)
        self._restores = Restores(self._engine, self._starter, self._discard)
        self._forks = Forks(self._engine, self._starter, self._captures, self.remove)
        self._packs = Packs(self._engine, self._images)
        self._info: dict[str, Any] | None = None
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Held] = weakref.WeakKeyDictionary()

    def capabilities(self) -> Capabilities:
        # Before a check, the daemon is unknown; a snapshot that it cannot keep is refused later, then.
        keeps = self._info is None or not uppers.keeps_images_elsewhere(self._info)
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            users=True,
            snapshot=keeps,
            fork=keeps,
            portable=keeps,
            # Without control groups, as a daemon without root has it on kernels of old, nothing can be paused.
            freeze=self._info is None or self._info.get("CgroupDriver") != "none",
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
        async with self._held().starting.setdefault(spec.name, asyncio.Lock()):
            found = await self._find(spec)
            container = found["Id"] if found else await self._create(spec, info, told)
            handle = handle_of(found) if found else container
            connection = self._connection(handle, container)
            try:
                workdir = await connection.prepare(spec)
                if spec.runs_entrypoint:
                    await self._begin(spec, connection, told)
            except SandboxError as error:
                # One that ran already may be in use: the rollouts of a persistent job share theirs.
                if found and found["State"]["Running"]:
                    raise
                wrong = await launch.start_error(self._engine, container, error, spec.entrypoint)
                await self._remove(container)
                raise wrong from error
        ref = SandboxRef(
            provider=self.name,
            name=spec.name,
            handle=handle,
            host_id=host_id,
            queue=queue,
            generation=generation,
            workdir=workdir,
            has_workdir=spec.named_workdir is not None,
            image_user=spec.image_user,
            warnings=launch.warnings_of(spec, info),
            image=spec.image.identity,
        )
        return DockerSandbox(self._engine, connection, ref, self)

    async def entrypoint_state(self, name: str) -> EntrypointState:
        container = await self._engine.call(lambda client: client.inspect_container(name))
        connection = self._connection(handle_of(container), container["Id"])
        return await entrypoint.state_of(self._engine, connection.executions, container)

    async def end_entrypoint(self, name: str) -> None:
        container = await self._engine.call(lambda client: client.inspect_container(name))
        if entrypoint.form_of(container) == "first":
            raise UnsupportedFeatureError(
                "an entrypoint that is the sandbox's first process ends with the sandbox",
                key="entrypoint",
                remedy="remove the sandbox, or run the entrypoint below",
            )
        connection = self._connection(handle_of(container), container["Id"])
        await connection.executions.kill_once(entrypoint.KEY)
        await connection.processes.kill_world()

    async def attach(self, ref: SandboxRef) -> DockerSandbox:
        held = self._held().connections.get(ref.handle)
        # A shell that answers proves that the container runs, sooner than the daemon could say so.
        if held is None or is_frozen(ref.handle) or not await held.shell.alive():
            found = await self._require(ref)
            held = self._connection(ref.handle, found["Id"])
        return DockerSandbox(self._engine, held, ref, self)

    async def remove(self, name: str) -> None:
        # Whatever was to come after it goes first: alone it would come.
        await self._remove(name + SUFFIX)
        await self._remove(name)
        forget_restores(name)

    async def end(self, ref: SandboxRef) -> None:
        """Remove the sandbox of a ref, unless another one has its name."""
        # Not inspected before it is killed, see `Engine.kill`; the daemon's list needs no lock of its containers.
        every = {"name": [f"^/{name}$" for name in (ref.name, ref.name + SUFFIX)]}
        rows = await self._engine.call(lambda client: client.containers(all=True, filters=every))
        if any(handle_of(row) == ref.handle for row in rows):
            await self.remove(ref.name)

    async def snapshot(self, ref: SandboxRef, name: str) -> ImageRef:
        uppers.refuse_store(await self._daemon())
        container = await self._require(ref)
        async with self._captures.using(_stack_of(container)):
            return await self._captures.keep(container, name)

    async def restore(self, ref: SandboxRef, image: ImageRef) -> None:
        uppers.refuse_store(await self._daemon())
        found = await self._restores.find(ref.name, ref.handle)
        stack = _stack_of(found) if found else ""
        async with self._networks.hold(stack), self._captures.using(stack):
            container = await self._restores.restore(ref.name, ref.handle, image)
        self._connection(ref.handle, container["Id"])

    async def fork(self, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]:
        uppers.refuse_store(await self._daemon())
        parent = await self._require(ref)
        stack = _stack_of(parent)
        async with self._networks.hold(stack), self._captures.using(stack):
            children = await self._forks.fork(parent, names)
        forked = zip(names, children, strict=True)
        return [ref.model_copy(update={"name": name, "handle": handle}) for name, handle in forked]

    async def remove_image(self, image: ImageRef) -> None:
        if image.built:
            await self._captures.remove(image.reference)

    async def remove_snapshots(self, prefix: str) -> None:
        await self._captures.remove_all(prefix)

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        uppers.refuse_store(await self._daemon())
        return await self._packs.pack(image, store)

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        uppers.refuse_store(await self._daemon())
        return await self._packs.unpack(pack, name, store)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        label = {"label": f"{STACK_LABEL}={stack_id}"}
        rows = await self._engine.call(lambda client: client.containers(all=True, filters=label))
        found: dict[str, OwnedSandbox] = {}
        # Names with the suffix come last: they count only where there is none without it.
        named = [row for row in rows if row["Names"] and PART_LABEL not in row["Labels"]]
        for row in sorted(named, key=lambda row: str(row["Names"][0]).endswith(SUFFIX)):
            name = row["Names"][0].lstrip("/").removesuffix(SUFFIX)
            if row["State"] == "paused":
                await freezer.go_on(self._engine, row)
            if name in found:
                await self._restores.tidy(name)
            found.setdefault(name, OwnedSandbox(name=name, handle=handle_of(row), labels=row["Labels"]))
        await self._drop_dead({sandbox.handle for sandbox in found.values()})
        await self._captures.tidy(stack_id)
        await clear_scratch()
        return list(found.values())

    async def sweep(self, stack_id: str) -> None:
        await self._captures.tidy(stack_id)
        await self._networks.sweep(stack_id)

    async def close(self) -> None:
        for connection in self._held().connections.values():
            await connection.executions.settle()
            connection.close()
        self._held().connections.clear()
        self._engine.close()

    # --- starting ------------------------------------------------------------------------------------

    async def _find(self, spec: SandboxSpec) -> dict[str, Any] | None:
        """The running container of this name. One that stopped, or cannot start, is removed."""
        found = await self._restores.find(spec.name)
        if found is None:
            return None
        if _stack_of(found) != spec.labels.get(STACK_LABEL, ""):
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
        await self._remove(container)
        return None

    async def _require(self, ref: SandboxRef) -> dict[str, Any]:
        """The running container of a sandbox. Raises `SandboxLostError`."""
        found = await self._restores.find(ref.name, ref.handle)
        if found is None or not found["State"]["Running"]:
            raise lost_error(ref.name, found)
        if found["State"]["Paused"]:
            await freezer.go_on(self._engine, found)
        return found

    async def _begin(self, spec: SandboxSpec, connection: Connection, told: dict[str, str]) -> None:
        """Let the entrypoint go on with its secrets, or start it: once, whoever else does the same now."""
        if spec.entrypoint == "below":
            await entrypoint.begin_below(self._engine, connection.executions, spec, told)
            return
        async with file_lock(container_records(connection.handle) / "entrypoint.lock"):
            await entrypoint.tell(self._engine, connection.shell, connection.container, told)

    async def _create(self, spec: SandboxSpec, info: dict[str, Any], told: dict[str, str]) -> str:
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
                    if (found := await self._find(spec)) is not None:
                        return str(found["Id"])
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.5)
                    continue
                try:
                    await self._starter.start(container)
                    return container
                except BenchFlowError as error:
                    wrong = await launch.start_error(self._engine, container, error, spec.entrypoint)
                    await self._remove(container)
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

    def _connection(self, handle: str, container: str) -> Connection:
        """This process's hold on a sandbox, which is this container now."""
        held = self._held().connections
        if handle not in held:
            held[handle] = Connection(self._engine, handle, container)
        elif held[handle].container != container:
            held[handle].close()
            held[handle].bind(container)
        return held[handle]

    def _drop(self, handle: str) -> None:
        connection = self._held().connections.pop(handle, None)
        if connection is not None:
            connection.close()

    async def _drop_dead(self, living: set[str]) -> None:
        """Let go of sandboxes that another process has removed."""
        for handle in set(self._held().connections) - living:
            container = self._held().connections[handle].container
            try:
                await self._engine.call(lambda client, it=container: client.inspect_container(it))  # type: ignore[misc]
            except (SandboxLostError, NotFound):
                self._drop(handle)
                forget(handle, container)

    # --- removing ------------------------------------------------------------------------------------

    async def _remove(self, name: str) -> None:
        """Remove one container, by its name or id, with all that is kept of its sandbox. Missing is success."""
        for attempt in range(REMOVE_TRIES):
            try:
                # Before it is looked at: a process inside may have stopped one that was to enter.
                await self._engine.kill(name)
                found = await self._engine.call(lambda client: client.inspect_container(name))
                self._drop(handle_of(found))
                forget(handle_of(found), found["Id"])
                await self._discard(found)
            except SandboxLostError:
                return
            except SandboxError:
                # Another process is removing it, or a mount is still busy: either ends by itself.
                if attempt == REMOVE_TRIES - 1:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                return

    async def _discard(self, container: dict[str, Any]) -> None:
        """Remove a container, and what was made for it and nothing else needs."""
        await self._engine.call(lambda client: client.remove_container(container["Id"], force=True, v=True))
        if (room := room_of(container)) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await self._engine.call(lambda client: client.remove_volume(room))
        await self._captures.release(container["Image"])


def _stack_of(container: dict[str, Any]) -> str:
    return str((container["Config"]["Labels"] or {}).get(STACK_LABEL, ""))
