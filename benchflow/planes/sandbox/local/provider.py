"""`LocalProvider`: finds, starts and removes sandboxes on this machine; builds what they start from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow.contracts.sandbox import (
    Capabilities,
    ImageConfig,
    ImageRef,
    OwnedSandbox,
    Sandbox,
    SandboxRef,
    SandboxSpec,
)
from benchflow.errors import SandboxLostError, SandboxStartError, UnsupportedFeatureError
from benchflow.planes.sandbox.local.fingerprint import host_fingerprint
from benchflow.planes.sandbox.local.images import BARE, Image, key_of, read_image
from benchflow.planes.sandbox.local.machine import Machine, owned_by_this_process
from benchflow.planes.sandbox.local.mask import policy as mask_policy
from benchflow.planes.sandbox.local.records import Running
from benchflow.planes.sandbox.local.sandbox import LocalSandbox
from benchflow.planes.sandbox.local.trial import require_machine

if TYPE_CHECKING:
    from benchflow.planes.sandbox.local.build.builder import Builder
    from benchflow.planes.sandbox.local.build.dockerfile import LayerConfig

STACK_LABEL = "benchflow.stack"


class LocalProvider:
    """Sandboxes as namespaces over a copy-on-write view of this machine's root."""

    name = "local"

    def __init__(self) -> None:
        self._machine = Machine()
        self._builder: Builder | None = None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            users=True,
            snapshot=True,
            fork=True,
            cpu_limit=True,
            memory_limit=True,
            storage_limit=False,
            dockerfile=True,
            mounts=True,
            isolation="process",
        )

    async def check(self) -> None:
        # One of its own: whoever asks, a client that only submits, holds nothing of it afterwards.
        machine = Machine()
        try:
            await require_machine(machine)
        finally:
            machine.close()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        if self._builder is None:
            # Whoever only asks whether there can be sandboxes need not know how images are built.
            from benchflow.planes.sandbox.local.build.builder import Builder

            self._builder = Builder(_Workshop(self, self._machine))
        return await self._builder.build(config, log=log)

    async def start(self, spec: SandboxSpec, *, host_id: str, queue: str, generation: int = 0) -> LocalSandbox:
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
        running = await self._machine.start(spec)
        ref = _ref(spec, running, host_id, queue, generation)
        return LocalSandbox(self._machine, ref, self._env(spec))

    async def attach(self, ref: SandboxRef) -> LocalSandbox:
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

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        await self._machine.tidy()
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
        self._machine.close()

    def _env(self, spec: SandboxSpec) -> dict[str, str]:
        """What each command of a sandbox has: its image's environment, then its own."""
        key = key_of(spec.image)
        image = read_image(self._machine.store.root, key) if key else None
        return (image.env if image else {}) | spec.env


class _Workshop:
    """What the builder needs of the machine."""

    def __init__(self, provider: LocalProvider, machine: Machine) -> None:
        self._provider = provider
        self._machine = machine

    def fingerprint(self) -> str:
        return f"{host_fingerprint()}/{mask_policy.VERSION}"

    async def find(self, key: str) -> ImageRef | None:
        await asyncio.to_thread(self._machine.store.open)
        found = await asyncio.to_thread(read_image, self._machine.store.root, key)
        return found.ref(key) if found else None

    async def open(self, base: str | None, name: str, hidden: tuple[str, ...]) -> LocalSandbox:
        image = Image(fingerprint="").ref(base) if base else ImageRef(reference=BARE)
        spec = SandboxSpec(name=name, image=image, workdir="/", hidden=hidden, labels=owned_by_this_process())
        running = await self._machine.start(spec, copy=True)
        # What the layers below say of environment and user is the builder's to apply.
        return LocalSandbox(self._machine, _ref(spec, running, "", "", 0), {})

    async def keep(self, sandbox: Sandbox, key: str, config: LayerConfig) -> ImageRef:
        image = Image(
            kind="layer",
            fingerprint=host_fingerprint(),
            env=config.env,
            workdir=config.workdir,
            warnings=config.warnings,
        )
        return await self._machine.keep_layer(sandbox.ref.name, key, image)


def _ref(spec: SandboxSpec, running: Running, host_id: str, queue: str, generation: int) -> SandboxRef:
    return SandboxRef(
        provider=LocalProvider.name,
        name=spec.name,
        handle=running.handle,
        host_id=host_id,
        queue=queue,
        generation=generation,
        workdir=running.workdir,
        warnings=running.warnings,
    )
