"""The implementation of `contracts.provider.SandboxProvider` over a driver."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.contracts.accelerators import EntrypointProgram, PacksCaptures, RunsEntrypoints
from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.driver import SandboxDriver, StartedSandbox
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Capabilities, SandboxRef, SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState, OwnedSandbox
from benchflow.errors import SandboxError, SandboxLostError, SandboxStartError, UnsupportedFeatureError
from benchflow.planes.sandbox.driven.command_executions import CommandRequest
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox, SandboxConnection
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.lives import Lives
from benchflow.planes.sandbox.driven.prepare import prepare_sandbox
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.started_sandboxes import StartedSandboxes, StartedSandboxRecord
from benchflow.planes.sandbox.scratch import clear_scratch

_TOGETHER = 'exec "$@" 2>&1'

LOG_BYTES = 64 * 1024
"""Maximum bytes of an entrypoint's log in its `EntrypointState`."""


class DrivenProvider:
    """The provider of one driver's sandboxes. `contracts.provider.SandboxProvider` describes its methods.

    The state of a sandbox is in the driver and in records on this host. The connections that this object holds only
    save time.
    """

    def __init__(self, driver: SandboxDriver) -> None:
        """Make the provider of a driver's sandboxes."""
        self._driver = driver
        self._places = StartedSandboxes(driver.name)
        self._lives = Lives(driver, self._places)
        # Locks and sockets belong to one event loop.
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SandboxConnection]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        """Return the provider's name, as `--sandbox` has it."""
        return self._driver.name

    @property
    def driver(self) -> SandboxDriver:
        """Return the driver."""
        return self._driver

    def capabilities(self) -> Capabilities:
        """Return the driver's capabilities; `entrypoint` is whether it implements `RunsEntrypoints`."""
        runs = isinstance(self._driver, RunsEntrypoints)
        return self._driver.capabilities().model_copy(update={"entrypoint": runs})

    async def check(self) -> None:
        """Raise `SandboxUnavailableError` if no sandbox can be started on this host now."""
        await self._driver.check()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Find, pull or build an image and return its reference. Output goes to the file `log`."""
        return await self._driver.build(config, log=log)

    # --- sandboxes -----------------------------------------------------------------------------------

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> DrivenSandbox:
        """Find the sandbox of the spec's name, else create it, prepare its directories and start its entrypoint.

        Args:
            spec: Sandbox to start. A restore of it that was interrupted is completed first.
            host_id: Id of this host, for the reference.
            queue: Task queue of this host, for the reference.
            generation: Number of the provision within its rollout, for the reference.
            secrets: Variables of the image's entrypoint alone.

        Raises:
            SandboxStartError: The sandbox, or its entrypoint, does not start.
            UnsupportedFeatureError: The spec asks for more than the driver can do.
        """
        self._refuse(spec)
        async with self._lives.turn(spec.name):
            place = self._places.read(spec.name)
            if place is not None and place.restoring is not None:
                place = await self._lives.finish(place)
            started = await self._driver.start(spec, dict(secrets or {}))
            is_new = place is None or place.driver_handle != started.handle
            workdir = started.workdir
            if workdir is None:
                workdir = await prepare_sandbox(EngineScripts(self._driver, started.handle), spec, is_new=is_new)
            if place is None or is_new:
                if place is not None:
                    SandboxRecords(place.handle).forget()
                place = self._place(spec, started)
            connection = self._connection(place)
            if isinstance(self._driver, RunsEntrypoints) and spec.runs_entrypoint:
                program = await self._driver.program(spec, dict(secrets or {}))
                if program is not None:
                    await self._begin(connection, program)
        ref = _make_ref(spec, started, workdir)
        where = {"handle": place.handle, "provider": self.name, "host_id": host_id, "queue": queue}
        return self._sandbox(connection, ref.model_copy(update=where | {"generation": generation}))

    def adopt(self, spec: SandboxSpec, started: StartedSandbox) -> DrivenSandbox:
        """Record a sandbox that the caller has started with the driver itself, and return it.

        Its workspace is the one that the driver names, else `/`.
        """
        ref = _make_ref(spec, started, started.workdir or "/").model_copy(update={"provider": self.name})
        return self._sandbox(self._connection(self._place(spec, started)), ref)

    def _place(self, spec: SandboxSpec, started: StartedSandbox) -> StartedSandboxRecord:
        """Record a sandbox that the driver has started, and return its place."""
        place = StartedSandboxRecord(spec=spec, handle=started.handle, driver_handle=started.handle)
        self._places.write(place)
        return place

    async def attach(self, ref: SandboxRef) -> DrivenSandbox:
        """Return the running sandbox of a reference. Raise `SandboxLostError` if it no longer runs."""
        return self._sandbox(self._connection(await self._require(ref)), ref)

    async def remove(self, name: str) -> None:
        """Remove the sandbox with a name, and the records of it. Success if there is none."""
        self._drop(name)
        async with self._lives.turn(name):
            await self._lives.remove(name)

    async def end(self, ref: SandboxRef) -> None:
        """Remove the sandbox of a reference, unless another one has its name by now."""
        place = self._places.read(ref.name)
        if place is None or place.handle == ref.handle:
            await self.remove(ref.name)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return the stack's sandboxes on this host, running or not.

        Each has the handle of its `SandboxRef`, which differs from the driver's after a restore. Connections to
        sandboxes that are gone are dropped, and so are scratch files.
        """
        found = await self._driver.owned(stack_id)
        living = {sandbox.name for sandbox in found}
        for name in {connection.place.spec.name for connection in self._held().values()} - living:
            # Another process has removed the sandbox.
            self._drop(name)
        await clear_scratch()
        places = {sandbox.name: self._places.read(sandbox.name) for sandbox in found}
        return [
            sandbox.model_copy(update={"handle": place.handle}) if (place := places[sandbox.name]) else sandbox
            for sandbox in found
        ]

    async def sweep(self, stack_id: str) -> None:
        """Remove resources that the stack's sandboxes shared, once none of them is left."""
        await self._driver.sweep(stack_id)

    async def close(self) -> None:
        """Finish pending kills and close the connections of this process. Sandboxes run on."""
        for connection in self._held().values():
            await connection.executions.settle()
        self._held().clear()
        await self._driver.close()

    # --- entrypoints ---------------------------------------------------------------------------------

    async def entrypoint_state(self, name: str) -> EntrypointState:
        """Return whether a sandbox's entrypoint runs, its exit code, and the last 64 KiB of its log.

        Raises:
            SandboxLostError: There is no record of the sandbox, or it no longer runs.
            SandboxError: The sandbox does not run its image's entrypoint.
        """
        driver, place = self._entrypoint_of(name)
        if not driver.runs_below(place.spec):
            return await driver.first_state(name)
        await self._driver.require(name, place.driver_handle)
        key = driver.entrypoint_key(place.driver_handle)
        running, code, log = await self._connection(place).executions.look(key, LOG_BYTES)
        return EntrypointState(running=running, exit_code=code, log=log)

    async def end_entrypoint(self, name: str) -> None:
        """Kill the entrypoint that runs below the first process, and all that it started. The sandbox stays.

        Raises:
            UnsupportedFeatureError: The entrypoint is the first process.
        """
        driver, place = self._entrypoint_of(name)
        if not driver.runs_below(place.spec):
            raise UnsupportedFeatureError(
                "an entrypoint that is the sandbox's first process ends with the sandbox",
                key="entrypoint",
                remedy="remove the sandbox, or run the entrypoint below",
            )
        connection = self._connection(place)
        await connection.executions.kill_once(driver.entrypoint_key(place.driver_handle))
        if connection.inside is not None:
            await connection.inside.hunter.kill_world()

    async def _begin(self, connection: SandboxConnection, program: EntrypointProgram) -> None:
        """Start an entrypoint below the first process, unless it was started.

        If the image's USER is missing, remove the sandbox and raise `SandboxStartError`.
        """
        assert isinstance(self._driver, RunsEntrypoints)
        place = connection.place
        argv = ("/bin/sh", "-c", _TOGETHER, "benchflow-entrypoint", *program.argv)
        command = CommandRequest(argv, program.env, program.cwd, program.user, is_world=True)
        try:
            await connection.executions.begin(self._driver.entrypoint_key(place.driver_handle), command)
        except SandboxError as error:
            if error.key != "user":
                raise
            await self._lives.remove(place.spec.name)
            raise SandboxStartError(
                f"the image's entrypoint cannot be started: {error.message}", key="USER", remedy=error.remedy
            ) from error

    def _entrypoint_of(self, name: str) -> tuple[RunsEntrypoints, StartedSandboxRecord]:
        """Return driver and place of a sandbox that runs its entrypoint. Raise `SandboxError` if it does not."""
        place = self._places.read(name)
        if place is None:
            raise SandboxLostError(f"nothing is known of the sandbox {name}")
        if not place.spec.runs_entrypoint or not isinstance(self._driver, RunsEntrypoints):
            raise SandboxError(f"the sandbox {name} does not run its image's entrypoint", key="entrypoint")
        return self._driver, place

    # --- states --------------------------------------------------------------------------------------

    async def restore(self, ref: SandboxRef, image: ImageRef) -> SandboxConnection:
        """Restart the sandbox of a reference from an image, and return a connection to the new one."""
        return self._connection(await self._lives.restore(await self._require(ref), image))

    async def fork(self, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]:
        """Start copies of the sandbox of a reference under these names, and return their references."""
        return await self._lives.fork(await self._require(ref), ref, names)

    async def read_original(self, ref: SandboxRef, path: str) -> bytes | None:
        """Return the content of a file of a sandbox's image; None if it has none.

        It is read from a second sandbox of the image, which runs no commands.
        """
        return await self._lives.read_original(await self._require(ref), path)

    async def remove_image(self, image: ImageRef) -> None:
        """Remove an image that this provider built or captured; leave all others."""
        if image.built:
            await self._driver.remove_image(image)

    async def remove_snapshots(self, prefix: str) -> None:
        """Remove all snapshots whose names start with `prefix`."""
        await self._driver.remove_captures(prefix)

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a snapshot to the store and return the pack.

        Raise `UnsupportedFeatureError` if the driver's captures are not portable.
        """
        return await self._packer.pack(image, store)

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Find the snapshot of this name, else make it from a pack.

        Raise `UnsupportedFeatureError` if the driver's captures are not portable.
        """
        return await self._packer.unpack_capture(pack, name, store)

    # --- connections ---------------------------------------------------------------------------------

    @property
    def _packer(self) -> PacksCaptures:
        if not isinstance(self._driver, PacksCaptures):
            raise self._driver.unsupported("portable", "its captures stay on this host")
        return self._driver

    def _refuse(self, spec: SandboxSpec) -> None:
        """Raise `UnsupportedFeatureError` for a spec that asks for more than the driver can do."""
        modes = self.capabilities().network_modes
        if spec.network_mode not in modes:
            raise UnsupportedFeatureError(
                f"the {self.name} sandbox has no network mode {spec.network_mode!r}",
                key="network_mode",
                remedy=f"use {' or '.join(repr(mode) for mode in modes)}",
            )
        if spec.runs_entrypoint and not isinstance(self._driver, RunsEntrypoints):
            raise self._driver.unsupported("entrypoint", "they don't run what their image runs by itself")

    async def _require(self, ref: SandboxRef) -> StartedSandboxRecord:
        """Return the place of a running sandbox, after an interrupted restore is completed.

        Raise `SandboxLostError` if it no longer runs.
        """
        place = self._places.read(ref.name) or await self._find_earlier(ref)
        if place.handle != ref.handle:
            raise SandboxLostError(f"the sandbox {ref.name} no longer runs")
        if place.restoring is not None:
            async with self._lives.turn(ref.name):
                place = await self._lives.finish(self._places.read(ref.name) or place)
        await self._driver.require(ref.name, place.driver_handle)
        return place

    async def _find_earlier(self, ref: SandboxRef) -> StartedSandboxRecord:
        """Return the place, recorded now, of a sandbox that an earlier version started, which recorded none."""
        found = await self._driver.find(ref.name)
        if found is None or found.handle != ref.handle:
            raise SandboxLostError(f"the sandbox {ref.name} no longer runs")
        form = found.labels.get("benchflow.entrypoint", "wraps")
        spec = {"name": ref.name, "image": {"reference": ref.image or ""}, "labels": found.labels, "entrypoint": form}
        place = StartedSandboxRecord(
            spec=SandboxSpec.model_validate(spec), handle=found.handle, driver_handle=found.handle
        )
        self._places.write(place)
        return place

    def _sandbox(self, connection: SandboxConnection, ref: SandboxRef) -> DrivenSandbox:
        return DrivenSandbox(self._driver, connection, ref, self)

    def _held(self) -> dict[str, SandboxConnection]:
        """Return the connections of the running event loop, by handle."""
        return self._by_loop.setdefault(asyncio.get_running_loop(), {})

    def _connection(self, place: StartedSandboxRecord) -> SandboxConnection:
        """Return this process's connection to the sandbox of a place; a new one if the place has changed."""
        held = self._held()
        if place.handle not in held or held[place.handle].place != place:
            held[place.handle] = SandboxConnection(self._driver, place)
        return held[place.handle]

    def _drop(self, name: str) -> None:
        """Forget the connections to the sandbox with a name."""
        held = self._held()
        for handle in [handle for handle, connection in held.items() if connection.place.spec.name == name]:
            del held[handle]


def _make_ref(spec: SandboxSpec, started: StartedSandbox, workdir: str) -> SandboxRef:
    """Return a sandbox's reference, with provider, host and queue left empty."""
    return SandboxRef(
        provider="",
        name=spec.name,
        handle=started.handle,
        host_id="",
        queue="",
        workdir=workdir,
        has_workdir=spec.named_workdir is not None,
        image_user=spec.image_user,
        warnings=started.warnings,
        image=spec.image.identity,
    )
