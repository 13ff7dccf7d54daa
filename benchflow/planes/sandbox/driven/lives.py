"""Restoring, forking and removing sandboxes: by the driver's own methods, or by way of its captures."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from benchflow.contracts.accelerators import ENTRYPOINT_KEY, ForkAccelerator, RestoreAccelerator
from benchflow.contracts.driver import SandboxDriver, StartedSandbox
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxRef, SandboxSpec
from benchflow.errors import BenchFlowError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.retained_outputs import RetainedOutputs, clear_outputs
from benchflow.planes.sandbox.driven.sandbox_files import SandboxFiles
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.started_sandboxes import StartedSandboxes, StartedSandboxRecord

PROBE = ".probe"
"""Suffix of the name of a probe: a sandbox that is started only to check that an image exists, or to read from it."""


class Lives:
    """Restores, forks and removes the sandboxes of one driver."""

    def __init__(self, driver: SandboxDriver, places: StartedSandboxes) -> None:
        """Make it."""
        self._driver = driver
        self._places = places

    def turn(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Return the lock under which the sandbox with a name is started, restored or removed."""
        return hold_lock_async(find_state_dir() / "locks" / f"sandbox-{self._driver.name}-{name}.lock")

    # --- restoring -----------------------------------------------------------------------------------

    async def restore(self, place: StartedSandboxRecord, image: ImageRef) -> StartedSandboxRecord:
        """Restart a sandbox from an image, and return its new place.

        If it fails for another reason than an outage, the old place stays recorded.

        Raises:
            UnsupportedFeatureError: The driver cannot capture files.
        """
        if not self._driver.capabilities().snapshot:
            raise self._driver.unsupported("restore", "its files cannot be captured")
        async with self.turn(place.spec.name):
            if not isinstance(self._driver, RestoreAccelerator):
                # Errors of the image are found here, before the running sandbox is removed.
                await self._driver.start(_make_probe_spec(place.spec, image), {})
                await self._driver.remove(place.spec.name + PROBE)
            begun = place.model_copy(update={"restoring": image})
            self._places.write(begun)
            try:
                return await self.finish(begun)
            except BenchFlowError as error:
                if not error.is_outage:
                    self._places.write(place)
                raise

    async def finish(self, place: StartedSandboxRecord) -> StartedSandboxRecord:
        """Complete a restore, also one whose process has died, and return the new place. The caller holds the lock."""
        if place.restoring is None:
            return place
        spec, handle = place.spec.model_copy(update={"image": place.restoring}), place.driver_handle
        if isinstance(self._driver, RestoreAccelerator):
            await self._driver.restore(spec.name, handle, place.restoring)
        else:
            outputs = RetainedOutputs(self._driver, SandboxRecords(place.handle))
            found = await self._driver.find(spec.name)
            if found is not None and found.handle == handle:
                await outputs.save(handle)
                await self._driver.remove(spec.name)
            handle = (await self._driver.start(spec, {})).handle
            await outputs.put_back(handle)
        SandboxRecords(place.handle).end_commands(but=ENTRYPOINT_KEY)
        place = place.model_copy(update={"spec": spec, "driver_handle": handle, "restoring": None})
        self._places.write(place)
        return place

    # --- forking -------------------------------------------------------------------------------------

    async def fork(self, place: StartedSandboxRecord, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]:
        """Start copies of a sandbox, all with its files as of one moment, and return their references.

        Args:
            place: Place of the sandbox.
            ref: Reference of the sandbox, from which theirs differ in name and handle.
            names: Names of the copies.

        Raises:
            UnsupportedFeatureError: The driver cannot fork.
        """
        if not self._driver.capabilities().fork:
            raise self._driver.unsupported("fork", "its files cannot be captured")
        if isinstance(self._driver, ForkAccelerator):
            started = await self._driver.fork(place.driver_handle, names)
            capture = None
        else:
            started, capture = await self._fork(place, names)
        shared = tuple(mount for mount in place.spec.mounts if mount.read_only)
        refs = []
        for name, child in zip(names, started, strict=True):
            spec = place.spec.model_copy(update={"name": name, "mounts": shared})
            self._places.write(
                StartedSandboxRecord(spec=spec, handle=child.handle, driver_handle=child.handle, capture=capture)
            )
            refs.append(ref.model_copy(update={"name": name, "handle": child.handle}))
        return refs

    async def _fork(
        self, place: StartedSandboxRecord, names: Sequence[str]
    ) -> tuple[list[StartedSandbox], ImageRef | None]:
        """Fork by a capture. Return the copies, and the capture to remove with the last of them."""
        digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:16]
        async with hold_lock_async(find_state_dir() / "locks" / f"fork-{digest}.lock"):
            known = [self._places.read(name) for name in names]
            found = [await self._driver.find(name) for name in names]
            if all(found) and all(known):
                # A process that started them may have died before it could record it.
                handles = [one.handle for one in known if one is not None]
                return [StartedSandbox(handle=handle) for handle in handles], known[0].capture if known[0] else None
            # All copies must be of one moment, so that none from an earlier attempt may stay.
            await asyncio.gather(*(self.remove(name) for name in names))
            capture = await self._driver.capture(place.driver_handle, f"fork/{digest}-{secrets.token_hex(4)}")
            shared = tuple(mount for mount in place.spec.mounts if mount.read_only)
            specs = [place.spec.model_copy(update={"name": n, "mounts": shared, "image": capture}) for n in names]
            try:
                started = await asyncio.gather(*(self._driver.start(spec, {}) for spec in specs))
                # Outputs of commands belong to the parent's idempotency keys, which the copies have not used.
                await asyncio.gather(*(clear_outputs(EngineScripts(self._driver, one.handle)) for one in started))
                return list(started), capture
            except BaseException:
                await asyncio.gather(*(self._driver.remove(name) for name in names), return_exceptions=True)
                await self._driver.remove_image(capture)
                raise

    # --- ending --------------------------------------------------------------------------------------

    async def remove(self, name: str) -> None:
        """Remove the sandbox with a name and its records. Success if there is none.

        The capture that it was forked from is removed with the last sandbox that was.
        """
        place = self._places.read(name)
        handle = place.handle if place is not None else None
        if handle is None and (found := await self._driver.find(name)) is not None:
            handle = found.handle
        await self._driver.remove(name)
        if handle is not None:
            SandboxRecords(handle).forget()
        self._places.forget(name)
        capture = place.capture if place is not None else None
        if capture is not None and all(other.capture != capture for other in self._places.all()):
            await self._driver.remove_image(capture)

    async def read_original(self, place: StartedSandboxRecord, path: str) -> bytes | None:
        """Return the content of a file of a sandbox's image; None if it has none.

        It is read from a second sandbox of the image, which runs no commands.
        """
        probe = _make_probe_spec(place.spec, place.spec.image)
        async with self.turn(probe.name):
            handle = (await self._driver.start(probe, {})).handle
            try:
                return await SandboxFiles(self._driver, handle, EngineScripts(self._driver, handle)).read_archived(path)
            except FileNotFoundError:
                return None
            finally:
                await self._driver.remove(probe.name)


def _make_probe_spec(spec: SandboxSpec, image: ImageRef) -> SandboxSpec:
    """Return the spec of a probe of `image`: as `spec`, without network, ports and entrypoint."""
    update = {
        "name": spec.name + PROBE,
        "image": image,
        "network_mode": "no-network",
        "ports": (),
        "entrypoint": "none",
    }
    return spec.model_copy(update=update)
