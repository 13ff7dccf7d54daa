"""The local sandboxes of one state directory: their shared resources, and the steps of a sandbox's life.

Every step leaves a trace before it makes something: a record names the sandbox, then its cgroup and volume carry the
name. Any process that finds a trace, in whatever state a crash has left it, can finish or undo the step.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow.contracts.failures import typed_error
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import BenchFlowError, SandboxLostError, SandboxStartError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.local import network
from benchflow.planes.sandbox.local.cgroup_limits import SandboxLimits
from benchflow.planes.sandbox.local.cgroups import Cgroups
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.helper import netlink
from benchflow.planes.sandbox.local.helper_client import Helper, HelperDiedError
from benchflow.planes.sandbox.local.local_images import BARE, WHOLE, LocalImage, parse_key, read_image, require_image
from benchflow.planes.sandbox.local.local_records import LocalRecords, Running, read_all_records, read_boot_id
from benchflow.planes.sandbox.local.mask.masks import Masks
from benchflow.planes.sandbox.local.store.loop_image import is_open
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore
from benchflow.planes.sandbox.local.volumes import Volumes, name_volume
from benchflow.planes.sandbox.overlays import Overlay
from benchflow.planes.sandbox.owners import OWNER_LABEL, is_abandoned
from benchflow.planes.sandbox.sandbox_memory import make_memory_error
from benchflow.process_identity import read_start_time

INIT = "init"
"""Cgroup leaf of a sandbox's first process."""

HOSTNAME = "sandbox"

_TRIES = 3

_MOUNT_POINT = "mnt"
"""Empty directory of the store, on which each sandbox's root is mounted in its own mount namespace."""

_LINKS_SEC, _MOUNTS_SEC = 8.0, 10.0
"""Seconds in which the kernel removes the links and mounts of sandboxes that have ended."""

_END_TIMEOUT_SEC = 2.0
"""Seconds for which a process that has the store open may be about to end."""


class Machine:
    """The sandboxes of this state directory on this machine."""

    def __init__(self) -> None:
        """Make it. Nothing is created on disk before the first start."""
        self.home = find_state_dir() / "local"
        self.store = VolumeStore(self.home)
        self.cgroups = Cgroups(self.home, name_group(self.home))
        self.helper = Helper(self.home)
        self._masks = Masks(self.store)
        self._volumes = Volumes(self.store)
        self._alive: dict[str, Running] = {}
        self._leaving: set[str] = set()

    def records(self, name: str) -> LocalRecords:
        """Return the records of a sandbox, which need not exist."""
        return LocalRecords(self.home / "sandboxes" / name)

    def all(self) -> list[tuple[str, LocalRecords]]:
        """Return the names and records of all sandboxes that have records."""
        return list(read_all_records(self.home / "sandboxes"))

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        """Hold a shared lock, under which no resource that sandboxes share is removed."""
        async with hold_lock_async(self._lock("use"), shared=True):
            yield

    def close(self) -> None:
        """End this process's helper and release the store. Sandboxes and their commands run on."""
        self.helper.close()
        self.store.release()

    def running(self, name: str) -> Running | None:
        """Return the running sandbox of this name; None if its first process has ended, or never started."""
        for running in (self._alive.get(name), self.records(name).running):
            if running is not None and read_start_time(running.pid) == running.started:
                self._alive[name] = running
                return running
        self._alive.pop(name, None)
        return None

    def init_of(self, name: str, handle: str | None = None) -> tuple[int, int]:
        """Return pid and start time of the first process. Raise `SandboxLostError` if it, or this handle's, is gone."""
        running = self.running(name)
        if running is None or handle not in (None, running.handle):
            raise self._loss(name, handle)
        return running.pid, running.started

    def _loss(self, name: str, handle: str | None) -> SandboxLostError:
        last = self.records(name).running
        use = self.cgroups.sandbox(name).memory_use() if last is not None and last.handle == handle else None
        return make_memory_error(name, use) or SandboxLostError(f"the sandbox {name} no longer runs")

    def overlay(self, name: str) -> tuple[str, Overlay]:
        """Return the id of the image below a sandbox's files, and the layers of its overlay."""
        spec, image = self._spec(name), self.image_of(name)
        lower = [self.store.root / layer for layer in self._lower(image, spec)]
        return image.base or BARE, Overlay([self.store.root / name_volume(name) / "u"], lower)

    async def start(self, spec: SandboxSpec, *, copy: bool = False) -> Running:
        """Find or start a sandbox. One that runs is thawed: its rollout may have been terminated while it was frozen.

        With `copy`, its files begin as a copy of the image's, even of a layer's. Raises `SandboxStartError` if the
        kernel refuses it, or kills its first process each time.
        """
        async with self.using(), self._hold(spec.name):
            found = await asyncio.to_thread(self.running, spec.name)
            if found is not None:
                self.records(spec.name).is_frozen = False
                await self.thaw_forgotten(spec.name)
                return found
            return await self._start_anew(spec, lambda: self._volumes.make_for(spec, copy))

    async def _start_anew(
        self, spec: SandboxSpec, fill: Callable[[], LocalImage], *, keep_records: bool = False
    ) -> Running:
        """Start a sandbox in place of an earlier one of its name. `fill` creates its volume. Retry if the helper dies.

        With `keep_records` it stays the same sandbox, with its handle and the records of its commands.
        """
        before = self.records(spec.name).running if keep_records else None
        handle = before.handle if before else secrets.token_hex(8)
        for attempt in range(_TRIES):
            await asyncio.to_thread(self._take_down, spec.name, keep_records=keep_records)
            try:
                return await self._bring_up(spec, fill, handle)
            except HelperDiedError as error:
                if attempt == _TRIES - 1:
                    # After several kills in a row, a retry is pointless.
                    await asyncio.to_thread(self._take_down, spec.name)
                    raise SandboxStartError(
                        f"the sandbox cannot be started: each of {_TRIES} times its first process was killed",
                        remedy="see whether the machine, or the sandbox's memory_mb, is short of memory",
                    ) from error
            except OSError as error:
                await asyncio.to_thread(self._take_down, spec.name)
                if (typed := typed_error(error)) is not error:
                    raise typed from error
                raise SandboxStartError(
                    f"the sandbox cannot be started: {error.strerror or error}",
                    remedy="see `--sandbox docker` for machines on which this cannot be done",
                ) from error
            except BenchFlowError:
                await asyncio.to_thread(self._take_down, spec.name)
                raise
        raise AssertionError("unreachable")

    async def _bring_up(self, spec: SandboxSpec, fill: Callable[[], LocalImage], handle: str) -> Running:
        """Create volume, cgroup and limits, have the helper start the first process, and record it."""
        cgroup = self.cgroups.sandbox(spec.name)

        def prepare() -> tuple[dict[str, Any], tuple[str, ...]]:
            # Outputs of a sandbox's root are files of the host's root, perhaps with a set-user-id bit: close the way.
            self.home.chmod(0o700)
            self.records(spec.name).spec = spec
            self.store.open()
            (self.store.root / _MOUNT_POINT).mkdir(exist_ok=True)
            image = fill()
            work = self._volumes.make_work(spec.name)
            warnings = cgroup.make(SandboxLimits(memory_mb=spec.memory_mb, cpus=spec.cpus))
            if spec.storage_mb is not None:
                warnings += (f"storage_mb = {spec.storage_mb} is not enforced: local sandboxes have no quota",)
            own, *limits = cgroup.join_files(INIT)
            return {
                "store": str(self.store.root),
                "root": _MOUNT_POINT,
                "lower": self._lower(image, spec),
                "upper": f"{name_volume(spec.name)}/u",
                "work": work,
                "group": str(Path(own).parent),
                "limits": limits,
                "hostname": HOSTNAME,
                "mounts": [mount.model_dump() for mount in spec.mounts],
                "workdir": spec.named_workdir,
            }, warnings

        request, warnings = await asyncio.to_thread(prepare)
        with ExitStack() as held:
            public = spec.network_mode == "public"
            subnet = (await asyncio.to_thread(held.enter_context, network.hold())).subnet if public else None
            answer = await self.helper.call("start", request | {"subnet": subnet})
        running = Running(handle=handle, boot=read_boot_id(), warnings=spec.image.warnings + warnings, **answer)
        await asyncio.to_thread(self._note, spec.name, running)
        return running

    def _lower(self, image: LocalImage, spec: SandboxSpec) -> list[str]:
        """Return the layers below a sandbox's own files, topmost first, relative to the store."""
        base = [f"images/{image.base}/u"] if image.base else []
        if image.is_whole:
            return [*self._masks.over_image(image.base), *base]
        return [*base, *self._masks.layers(spec.hidden), "/"]

    def _note(self, name: str, running: Running) -> None:
        self.records(name).running = running
        self._alive[name] = running

    async def capture(self, name: str, target: str, image: LocalImage) -> None:
        """Copy a running sandbox's files into the volume `target`, all as of one moment. The sandbox runs on."""
        self.init_of(name)
        async with self.standing_still(name):
            await asyncio.to_thread(self._volumes.capture, self.cgroups.sandbox(name), name, target, image)

    async def snapshot(self, name: str, key: str) -> ImageRef:
        """Capture a sandbox's files as the image `key`, unless that exists, and return its reference."""
        async with self.using(), self.at_image(key):
            found = await asyncio.to_thread(read_image, self.store.root, key)
            if found is None:
                found = await asyncio.to_thread(self.image_of, name)
                await self.capture(name, f"images/{key}", found)
            return found.ref(key)

    async def keep_layer(self, name: str, key: str, image: LocalImage) -> ImageRef:
        """Capture a sandbox's files as a layer. They must have been started with `copy`, so that they are complete."""
        await self.capture(name, f"images/{key}", image)
        return image.ref(key)

    def image_of(self, name: str) -> LocalImage:
        """Return the image record that a snapshot of the sandbox would have."""
        return self._volumes.image_of(self._spec(name))

    def _spec(self, name: str) -> SandboxSpec:
        spec = self.records(name).spec
        if spec is None:
            raise SandboxLostError(f"nothing is known of the sandbox {name}")
        return spec

    async def restore(self, name: str, image: ImageRef) -> Running:
        """Start a sandbox again, from an image: same name, handle and limits, new processes."""
        async with self.using(), self._hold(name):
            spec = self._spec(name).model_copy(update={"image": image})
            # A bad image is found before the sandbox is taken down for it.
            key = parse_key(image)
            if key is not None:
                await asyncio.to_thread(self.store.open)
                await asyncio.to_thread(lambda: require_image(self.store.root, key, compute_host_fingerprint()))
            return await self._start_anew(spec, lambda: self._volumes.make_for(spec, False), keep_records=True)

    async def fork(self, name: str, children: Sequence[str]) -> list[Running]:
        """Start a sandbox for each name in `children`: capture this one's files once, and copy them for each."""
        master = f"masters/{name}-{secrets.token_hex(4)}"
        spec = self._spec(name)
        async with self.using(), hold_lock_async(self._lock(f"{name}.fork"), shared=True):
            image = await asyncio.to_thread(self.image_of, name)
            await self.capture(name, master, image)
            try:
                return await asyncio.gather(*(self._start_child(spec, child, master, image) for child in children))
            except BaseException:
                await asyncio.gather(*(self.remove(child) for child in children), return_exceptions=True)
                raise
            finally:
                await asyncio.to_thread(self.store.delete, master)

    async def _start_child(self, spec: SandboxSpec, name: str, master: str, image: LocalImage) -> Running:
        """Start a fork from the volume `master`, without writable mounts, unless it runs already."""
        shared = tuple(mount for mount in spec.mounts if mount.read_only)
        child = spec.model_copy(update={"name": name, "mounts": shared})

        def fill() -> LocalImage:
            self._volumes.copy(master, name_volume(name))
            return image

        async with self._hold(name):
            return await asyncio.to_thread(self.running, name) or await self._start_anew(child, fill)

    async def remove(self, name: str) -> None:
        """End a sandbox and remove all that it owns. Missing is success."""
        async with self.using(), self._hold(name):
            await asyncio.to_thread(self._take_down, name)
            self._lock(name).unlink(missing_ok=True)

    def _take_down(self, name: str, *, keep_records: bool = False) -> None:
        """Kill a sandbox's processes and remove its cgroup, volume and, unless they are kept, records."""
        records = self.records(name)
        running = records.running
        if running is not None and running.link is not None:
            # The kernel removes the link with its namespace, some time after the last process.
            self._leaving.add(running.link)
        # Before the kill, so that a caller whose command dies finds the sandbox lost.
        records.running = None
        self._alive.pop(name, None)
        self.cgroups.sandbox(name).remove()
        if records.exists or self.store.mounted:
            self.store.open()
            self.store.delete(name_volume(name))
        if not keep_records:
            records.remove()
            for purpose in ("capture", "fork"):
                self._lock(f"{name}.{purpose}").unlink(missing_ok=True)

    async def tidy(self) -> None:
        """Clean up after crashes: forgotten frozen sandboxes, those of dead owners, and orphaned resources."""
        found = dict(self.all())
        specs = {name: records.spec for name, records in found.items()}
        for name, spec in specs.items():
            if spec is not None and is_abandoned(spec.labels.get(OWNER_LABEL)):
                await self.remove(name)
        stray = {*found, *await asyncio.to_thread(self.cgroups.names)}
        if self.store.mounted:
            stray.update(await asyncio.to_thread(self.store.names, "sandboxes"))
        for name in stray:
            if specs.get(name) is not None:
                await self.thaw_forgotten(name)
            else:
                await self._remove_unknown(name)
        if self.store.mounted:
            await self._remove_masters()

    async def _remove_unknown(self, name: str) -> None:
        """Remove the resources of a sandbox that has no specification, unless a process holds its lock."""
        async with hold_lock_async(self._lock(name), wait=False) as held:
            if held:
                if self.records(name).spec is None:
                    await asyncio.to_thread(self._take_down, name)
                self._lock(name).unlink(missing_ok=True)

    async def _remove_masters(self) -> None:
        """Remove the volumes that forks were copied from and that no fork in progress uses."""
        for master in await asyncio.to_thread(self.store.names, "masters"):
            lock = self._lock(f"{master.rpartition('-')[0]}.fork")
            async with hold_lock_async(lock, wait=False) as held:
                if held:
                    await asyncio.to_thread(self.store.delete, f"masters/{master}")
                    lock.unlink(missing_ok=True)

    def standing_still(self, name: str, *, wait: bool = True) -> AbstractAsyncContextManager[bool]:
        """Return a context for freezing a sandbox temporarily, in which a cleanup does not thaw it as forgotten."""
        return hold_lock_async(self._lock(f"{name}.capture"), wait=wait)

    async def thaw_forgotten(self, name: str) -> None:
        """Thaw a sandbox left frozen by a process that died, unless it was frozen on request or is held frozen now."""
        cgroup, records = self.cgroups.sandbox(name), self.records(name)
        if await asyncio.to_thread(lambda: cgroup.frozen):
            async with self.standing_still(name, wait=False) as held:
                if held and not records.is_frozen:
                    await asyncio.to_thread(cgroup.thaw)

    async def sweep(self) -> None:
        """Clean up after crashes and, once there is no sandbox, remove what they share."""
        await self.tidy()
        if self.all():
            return
        async with hold_lock_async(self._lock("use"), wait=False) as held:
            if not held or self.all():
                return
            for lock in set((self.home / "locks").iterdir()) - {self._lock("use")}:
                async with hold_lock_async(lock, wait=False) as unused:
                    if unused:
                        lock.unlink()
            await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        """Remove network rules, cgroups and stale images, and unmount the store, waiting for the kernel."""
        # The kernel removes a namespace's links and mounts some time after its last process.
        with netlink.open_socket() as sock:
            _wait(lambda: not self._leaving & set(netlink.list_links(sock)), _LINKS_SEC)
        network.sweep()
        self.cgroups.sweep()
        if self.store.mounted:
            self._remove_stale_images()
            late = time.monotonic() + _END_TIMEOUT_SEC
            # Every start waits for the lock meanwhile: give up early on a process that has the store open and runs on.
            _wait(lambda: self.store.close() or (time.monotonic() > late and is_open(self.store.root)), _MOUNTS_SEC)

    def _remove_stale_images(self) -> None:
        """Remove layers and snapshots over an earlier state of the host, which can never be used again."""
        fingerprint = compute_host_fingerprint()
        for key in self.store.names("images"):
            image = read_image(self.store.root, key)
            if image is None or image.fingerprint not in (fingerprint, WHOLE):
                self.store.delete(f"images/{key}")

    async def remove_image(self, key: str) -> None:
        """Remove a layer or a snapshot. Missing is success."""
        async with self.using(), self.at_image(key):
            await asyncio.to_thread(self.store.open)
            await asyncio.to_thread(self.store.delete, f"images/{key}")

    async def remove_images(self, prefix: str) -> None:
        """Remove all images whose keys begin with `prefix`."""
        await asyncio.to_thread(self.store.open)
        for key in await asyncio.to_thread(self.store.names, "images"):
            if key.startswith(prefix):
                await self.remove_image(key)

    def _hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        return hold_lock_async(self._lock(name))

    def at_image(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Return a context that holds the lock of an image, for creating or removing it."""
        return hold_lock_async(self._lock(f"image-{key}"))

    def _lock(self, name: str) -> Path:
        return self.home / "locks" / f"{name}.lock"


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def name_group(home: Path) -> str:
    """Return the cgroup name of a state directory, unique on this machine."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:12]
