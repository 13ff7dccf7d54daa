"""The provider of sandboxes over a driver."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.contracts.accelerators import EntrypointProgram, PacksCaptures, RunsEntrypoints
from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.driver import SandboxDriver, StartedSandbox
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.provider import EntrypointState, OwnedSandbox
from benchflow.contracts.sandbox import Capabilities, SandboxRef, SandboxSpec
from benchflow.errors import SandboxError, SandboxLostError, SandboxStartError, UnsupportedFeatureError
from benchflow.planes.sandbox.driven.executions import Command
from benchflow.planes.sandbox.driven.lives import Lives
from benchflow.planes.sandbox.driven.places import Place, Places
from benchflow.planes.sandbox.driven.prepare import prepare_sandbox
from benchflow.planes.sandbox.driven.records import Records
from benchflow.planes.sandbox.driven.sandbox import Connection, DrivenSandbox
from benchflow.planes.sandbox.driven.scripts import Scripts
from benchflow.planes.sandbox.scratch import clear_scratch

_TOGETHER = 'exec "$@" 2>&1'

LOG_BYTES = 64 * 1024
"""Bytes of an entrypoint's log that are told."""


class DrivenProvider:
    """Sandboxes over one driver.

    The truth about a sandbox is the driver's and the records' on this host; what this object holds (a connection per
    sandbox) only saves time.
    """

    def __init__(self, driver: SandboxDriver) -> None:
        self._driver = driver
        self._places = Places(driver.name)
        self._lives = Lives(driver, self._places)
        # Locks and sockets belong to one event loop.
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Connection]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        return self._driver.name

    @property
    def driver(self) -> SandboxDriver:
        """The driver below."""
        return self._driver

    def capabilities(self) -> Capabilities:
        runs = isinstance(self._driver, RunsEntrypoints)
        return self._driver.capabilities().model_copy(update={"entrypoint": runs})

    async def check(self) -> None:
        await self._driver.check()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
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
        self._refuse(spec)
        async with self._lives.turn(spec.name):
            place = self._places.read(spec.name)
            if place is not None and place.restoring is not None:
                place = await self._lives.finish(place)
            started = await self._driver.start(spec, dict(secrets or {}))
            is_new = place is None or place.driver_handle != started.handle
            workdir = started.workdir
            if workdir is None:
                workdir = await prepare_sandbox(Scripts(self._driver, started.handle), spec, is_new=is_new)
            if place is None or is_new:
                if place is not None:
                    Records(place.handle).forget()
                place = self._place(spec, started)
            connection = self._connection(place)
            if isinstance(self._driver, RunsEntrypoints) and spec.runs_entrypoint:
                program = await self._driver.program(spec, dict(secrets or {}))
                if program is not None:
                    await self._begin(connection, program)
        ref = _ref_of(spec, started, workdir)
        where = {"handle": place.handle, "provider": self.name, "host_id": host_id, "queue": queue}
        return self._sandbox(connection, ref.model_copy(update=where | {"generation": generation}))

    def adopt(self, spec: SandboxSpec, started: StartedSandbox) -> DrivenSandbox:
        """Return a sandbox that was started past this provider, with the workspace that it has."""
        ref = _ref_of(spec, started, started.workdir or "/").model_copy(update={"provider": self.name})
        return self._sandbox(self._connection(self._place(spec, started)), ref)

    def _place(self, spec: SandboxSpec, started: StartedSandbox) -> Place:
        place = Place(spec=spec, handle=started.handle, driver_handle=started.handle)
        self._places.write(place)
        return place

    async def attach(self, ref: SandboxRef) -> DrivenSandbox:
        return self._sandbox(self._connection(await self._require(ref)), ref)

    async def remove(self, name: str) -> None:
        self._drop(name)
        async with self._lives.turn(name):
            await self._lives.remove(name)

    async def end(self, ref: SandboxRef) -> None:
        """Remove the sandbox of a ref, unless another one has its name."""
        place = self._places.read(ref.name)
        if place is None or place.handle == ref.handle:
            await self.remove(ref.name)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        found = await self._driver.owned(stack_id)
        living = {sandbox.name for sandbox in found}
        for name in {connection.place.spec.name for connection in self._held().values()} - living:
            # Another process has removed it.
            self._drop(name)
        await clear_scratch()
        places = {sandbox.name: self._places.read(sandbox.name) for sandbox in found}
        return [
            sandbox.model_copy(update={"handle": place.handle}) if (place := places[sandbox.name]) else sandbox
            for sandbox in found
        ]

    async def sweep(self, stack_id: str) -> None:
        await self._driver.sweep(stack_id)

    async def close(self) -> None:
        for connection in self._held().values():
            await connection.executions.settle()
        self._held().clear()
        await self._driver.close()

    # --- entrypoints ---------------------------------------------------------------------------------

    async def entrypoint_state(self, name: str) -> EntrypointState:
        driver, place = self._entrypoint_of(name)
        if not driver.runs_below(place.spec):
            return await driver.first_state(name)
        await self._driver.require(name, place.driver_handle)
        key = driver.entrypoint_key(place.driver_handle)
        running, code, log = await self._connection(place).executions.look(key, LOG_BYTES)
        return EntrypointState(running=running, exit_code=code, log=log)

    async def end_entrypoint(self, name: str) -> None:
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

    async def _begin(self, connection: Connection, program: EntrypointProgram) -> None:
        """Start an entrypoint below the first process, unless that was done."""
        assert isinstance(self._driver, RunsEntrypoints)
        place = connection.place
        argv = ("/bin/sh", "-c", _TOGETHER, "benchflow-entrypoint", *program.argv)
        command = Command(argv, program.env, program.cwd, program.user, is_world=True)
        try:
            await connection.executions.begin(self._driver.entrypoint_key(place.driver_handle), command)
        except SandboxError as error:
            if error.key != "user":
                raise
            await self._lives.remove(place.spec.name)
            raise SandboxStartError(
                f"the image's entrypoint cannot be started: {error.message}", key="USER", remedy=error.remedy
            ) from error

    def _entrypoint_of(self, name: str) -> tuple[RunsEntrypoints, Place]:
        place = self._places.read(name)
        if place is None:
            raise SandboxLostError(f"nothing is known of the sandbox {name}")
        if not place.spec.runs_entrypoint or not isinstance(self._driver, RunsEntrypoints):
            raise SandboxError(f"the sandbox {name} does not run its image's entrypoint", key="entrypoint")
        return self._driver, place

    # --- states --------------------------------------------------------------------------------------

    async def restore(self, ref: SandboxRef, image: ImageRef) -> Connection:
        """Start a sandbox again from an image."""
        return self._connection(await self._lives.restore(await self._require(ref), image))

    async def fork(self, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]:
        """Start sandboxes with the files of another one."""
        return await self._lives.fork(await self._require(ref), ref, names)

    async def read_original(self, ref: SandboxRef, path: str) -> bytes | None:
        """Return what the image of a sandbox has at a path: read from another sandbox of it, which runs nothing."""
        return await self._lives.read_original(await self._require(ref), path)

    async def remove_image(self, image: ImageRef) -> None:
        if image.built:
            await self._driver.remove_image(image)

    async def remove_snapshots(self, prefix: str) -> None:
        await self._driver.remove_captures(prefix)

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        return await self._packer.pack(image, store)

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
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

    async def _require(self, ref: SandboxRef) -> Place:
        """Return the place of a sandbox that runs. Raises `SandboxLostError`."""
        place = self._places.read(ref.name) or await self._find_earlier(ref)
        if place.handle != ref.handle:
            raise SandboxLostError(f"the sandbox {ref.name} no longer runs")
        if place.restoring is not None:
            async with self._lives.turn(ref.name):
                place = await self._lives.finish(self._places.read(ref.name) or place)
        await self._driver.require(ref.name, place.driver_handle)
        return place

    async def _find_earlier(self, ref: SandboxRef) -> Place:
        """Return the place of a sandbox that an earlier version has started, which recorded none."""
        found = await self._driver.find(ref.name)
        if found is None or found.handle != ref.handle:
            raise SandboxLostError(f"the sandbox {ref.name} no longer runs")
        form = found.labels.get("benchflow.entrypoint", "wraps")
        spec = {"name": ref.name, "image": {"reference": ref.image or ""}, "labels": found.labels, "entrypoint": form}
        place = Place(spec=SandboxSpec.model_validate(spec), handle=found.handle, driver_handle=found.handle)
        self._places.write(place)
        return place

    def _sandbox(self, connection: Connection, ref: SandboxRef) -> DrivenSandbox:
        return DrivenSandbox(self._driver, connection, ref, self)

    def _held(self) -> dict[str, Connection]:
        return self._by_loop.setdefault(asyncio.get_running_loop(), {})

    def _connection(self, place: Place) -> Connection:
        """Return this process's hold on a sandbox, which has this place now."""
        held = self._held()
        if place.handle not in held or held[place.handle].place != place:
            held[place.handle] = Connection(self._driver, place)
        return held[place.handle]

    def _drop(self, name: str) -> None:
        held = self._held()
        for handle in [handle for handle, connection in held.items() if connection.place.spec.name == name]:
            del held[handle]


def _ref_of(spec: SandboxSpec, started: StartedSandbox, workdir: str) -> SandboxRef:
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
