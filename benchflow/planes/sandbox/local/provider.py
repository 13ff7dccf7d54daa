"""`LocalProvider`: finds, starts and removes sandboxes on this machine; builds what they start from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Capabilities, EntrypointState, OwnedSandbox, SandboxRef, SandboxSpec
from benchflow.errors import SandboxLostError, SandboxStartError, UnsupportedFeatureError
from benchflow.planes.sandbox.local.client import UnknownUserError
from benchflow.planes.sandbox.local.images import key_of, read_image
from benchflow.planes.sandbox.local.trial import require_machine
from benchflow.planes.sandbox.scratch import clear_scratch

if TYPE_CHECKING:
    from benchflow.planes.sandbox.local.build.builder import Builder
    from benchflow.planes.sandbox.local.entrypoint import Entrypoint
    from benchflow.planes.sandbox.local.executions import Command
    from benchflow.planes.sandbox.local.machine import Machine
    from benchflow.planes.sandbox.local.sandbox import LocalSandbox

STACK_LABEL = "benchflow.stack"


class LocalProvider:
    """Sandboxes as namespaces over a copy-on-write view of this machine's root.

    What runs and builds them is imported when it is first needed: a client that only submits never needs it.
    """

    name = "local"

    @cached_property
    def _machine(self) -> Machine:
        from benchflow.planes.sandbox.local.machine import Machine

        return Machine()

    @cached_property
    def _builder(self) -> Builder:
        from benchflow.planes.sandbox.local.build.builder import Builder
        from benchflow.planes.sandbox.local.build.workshop import LocalWorkshop

        return Builder(LocalWorkshop(self._machine))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            users=True,
            snapshot=True,
            fork=True,
            portable=True,
            freeze=True,
            cpu_limit=True,
            memory_limit=True,
            storage_limit=False,
            dockerfile=True,
            mounts=True,
            isolation="process",
        )

    async def check(self) -> None:
        await require_machine()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        return await self._builder.build(config, log=log)

    async def start(
        self,
        spec: SandboxSpec,
        *,
        host_id: str,
        queue: str,
        generation: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> LocalSandbox:
        if spec.network_mode not in self.capabilities().network_modes:
            raise UnsupportedFeatureError(
                f"the local sandbox has no network mode {spec.network_mode!r}",
                key="network_mode",
                remedy='use "public" or "no-network"',
            )
        known = self._machine.records(spec.name).spec
        if known is not None and known.labels.get(STACK_LABEL) != spec.labels.get(STACK_LABEL):
            raise SandboxStartError(
                f"a sandbox named {spec.name} exists and does not belong to this stack",
                remedy="choose another job name, or another state directory for one of the stacks",
            )
        from benchflow.planes.sandbox.local.sandbox import LocalSandbox, ref_of

        command = await self._entrypoint_of(spec, secrets or {}) if spec.runs_entrypoint else None
        running = await self._machine.start(spec)
        ref = ref_of(spec, running, host_id=host_id, queue=queue, generation=generation)
        sandbox = LocalSandbox(self._machine, ref, self._env(spec))
        if command is not None:
            try:
                await sandbox.entrypoint().begin(command)
            except UnknownUserError as error:
                await self.remove(spec.name)
                raise SandboxStartError(
                    f"the image's entrypoint cannot be started: {error.message}", key="USER", remedy=error.remedy
                ) from error
        return sandbox

    async def _entrypoint_of(self, spec: SandboxSpec, told: Mapping[str, str]) -> Command | None:
        """What is to run below the first process; None where the image is gone, which only a first start minds."""
        from benchflow.planes.sandbox.local.entrypoint import entrypoint_of

        key = key_of(spec.image)
        async with self._machine.using():
            await asyncio.to_thread(self._machine.store.open)
            image = await asyncio.to_thread(read_image, self._machine.store.root, key) if key else None
        return None if image is None and key else entrypoint_of(spec, image, told)

    async def entrypoint_state(self, name: str) -> EntrypointState:
        return await (await self._entrypoint(name)).state()

    async def end_entrypoint(self, name: str) -> None:
        await (await self._entrypoint(name)).end()

    async def _entrypoint(self, name: str) -> Entrypoint:
        from benchflow.planes.sandbox.local.entrypoint import require_entrypoint
        from benchflow.planes.sandbox.local.sandbox import LocalSandbox, ref_of

        running = await asyncio.to_thread(self._machine.running, name)
        spec = self._machine.records(name).spec
        if running is None or spec is None:
            raise SandboxLostError(f"the sandbox {name} no longer runs")
        require_entrypoint(spec)
        return LocalSandbox(self._machine, ref_of(spec, running), {}).entrypoint()

    async def attach(self, ref: SandboxRef) -> LocalSandbox:
        from benchflow.planes.sandbox.local.sandbox import LocalSandbox

        await asyncio.to_thread(self._machine.init_of, ref.name, ref.handle)
        await self._machine.thaw_forgotten(ref.name)
        spec = self._machine.records(ref.name).spec
        if spec is None:
            raise SandboxLostError(f"nothing is known of the sandbox {ref.name}")
        return LocalSandbox(self._machine, ref, self._env(spec))

    async def remove(self, name: str) -> None:
        await self._machine.remove(name)

    async def remove_image(self, image: ImageRef) -> None:
        key = key_of(image)
        if key is not None:
            await self._machine.remove_image(key)

    async def remove_snapshots(self, prefix: str) -> None:
        await self._machine.remove_images(prefix)

    async def pack_snapshot(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        from benchflow.planes.sandbox.local.packs import Packs

        return await Packs(self._machine).pack(image, store)

    async def unpack_snapshot(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        from benchflow.planes.sandbox.local.packs import Packs

        return await Packs(self._machine).unpack(pack, name, store)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        await self._machine.tidy()
        await clear_scratch()
        found = []
        for name, records in self._machine.all():
            spec = await asyncio.to_thread(lambda it=records: it.spec)  # type: ignore[misc]
            if spec is not None and spec.labels.get(STACK_LABEL) == stack_id:
                running = records.running
                found.append(OwnedSandbox(name=name, handle=running.handle if running else "", labels=spec.labels))
        return found

    async def sweep(self, stack_id: str) -> None:
        await self._machine.sweep()

    async def close(self) -> None:
        if "_machine" in self.__dict__:
            self._machine.close()

    def _env(self, spec: SandboxSpec) -> dict[str, str]:
        """What each command of a sandbox has: its image's environment, then its own."""
        key = key_of(spec.image)
        image = read_image(self._machine.store.root, key) if key else None
        return (image.env if image else {}) | spec.env
