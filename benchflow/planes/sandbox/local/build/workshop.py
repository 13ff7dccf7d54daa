"""The place where steps of a build are carried out: local sandboxes, and layers in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchflow.contracts.driver import SandboxDriver, StartedSandbox
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.build.recipe import LayerConfig
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.local_images import BARE, PREFIX, WHOLE, LocalImage, read_image
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.planes.sandbox.local.mask import policy as mask_policy
from benchflow.planes.sandbox.local.ready.ready_images import prepare_ready_image
from benchflow.planes.sandbox.owners import make_owner_labels


class LocalWorkshop:
    """The `Workshop` of one machine.

    Args:
        machine: The machine.
        driver: Returns a driver for the steps' sandboxes: of this machine, without environments and users of layers.
    """

    def __init__(self, machine: Machine, driver: Callable[[], SandboxDriver]) -> None:
        """Make it."""
        self._machine = machine
        self._driver = driver

    def fingerprint(self) -> str:
        """Return the host's fingerprint, with the version of the mask through which sandboxes see it."""
        return f"{compute_host_fingerprint()}/{mask_policy.VERSION}"

    async def find(self, key: str) -> ImageRef | None:
        """Return the layer or image with a key; None if it is not in the store."""
        await asyncio.to_thread(self._machine.store.open)
        found = await asyncio.to_thread(read_image, self._machine.store.root, key)
        return found.ref(key) if found else None

    async def describe(self, reference: str) -> LayerConfig | None:
        """Return the configuration of a layer to build upon; None if it is missing or made over another host."""
        await asyncio.to_thread(self._machine.store.open)
        found = await asyncio.to_thread(read_image, self._machine.store.root, reference.removeprefix(PREFIX))
        if found is None or found.kind != "layer" or found.fingerprint not in (compute_host_fingerprint(), WHOLE):
            return None
        return LayerConfig(
            env=found.env,
            workdir=found.workdir,
            user=found.user,
            shell=found.shell,
            entrypoint=found.entrypoint,
            command=found.command,
            warnings=found.warnings,
            base=reference,
        )

    async def ready(self, config: ImageConfig, log: Path | None) -> ImageRef:
        """Return the ready image of a configuration, unpacked if it was not before. Raises as `prepare_ready_image`."""
        return await prepare_ready_image(self._machine, config, log)

    async def open(self, base: str | None, name: str, hidden: tuple[str, ...]) -> Sandbox:
        """Start a root sandbox on a copy of the image `base`, or on the bare host. `hidden`: paths to hide."""
        known = LocalImage(fingerprint="").ref(base.removeprefix(PREFIX)) if base else None
        image = known or ImageRef(reference=BARE)
        spec = SandboxSpec(name=name, image=image, workdir="/", hidden=hidden, labels=make_owner_labels())
        running = await self._machine.start(spec, copy=True)
        started = StartedSandbox(handle=running.handle, warnings=running.warnings, workdir=running.workdir)
        return DrivenProvider(self._driver()).adopt(spec, started)

    async def keep(self, sandbox: Sandbox, key: str, config: LayerConfig) -> ImageRef:
        """Capture a sandbox's files as the layer `key`, with this configuration, and return its reference."""
        below = await asyncio.to_thread(self._machine.image_of, sandbox.ref.name)
        image = LocalImage(
            kind="layer",
            fingerprint=below.fingerprint,
            env=config.env,
            workdir=config.workdir,
            user=config.user,
            shell=config.shell,
            entrypoint=config.entrypoint,
            command=config.command,
            warnings=config.warnings,
        )
        return await self._machine.keep_layer(sandbox.ref.name, key, image)
