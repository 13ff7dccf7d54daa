"""State that all rollouts of one worker process share on this host: store, slots, unpacked tasks, sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import JobSpec, Origin, TaskRef
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import Task
from benchflow.host import HostSlots
from benchflow.host_files import hold_lock, raise_storage_errors
from benchflow.hosting.session_files import remove_sessions
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.store import Store
from benchflow.tasks import load_task, unpack


@dataclass(frozen=True)
class TaskFiles:
    """A task as it was submitted, with its files on this host."""

    task: Task
    """The task, parsed."""

    directory: Path
    """Directory of its files."""

    context: Path | None
    """Directory of its build context; None if that is its own `environment/`."""


@dataclass(kw_only=True)
class Host:
    """State that the rollouts of one worker process share. Jobs, tasks and sandboxes are cached when first read."""

    paths: StatePaths
    """State directory of this host."""

    store: Store
    """Store of artifacts, which all hosts share."""

    host_id: str
    """Id of this host."""

    queue: str
    """Task queue of this host."""

    stack: str
    """Identity of the stack, for the labels of sandboxes."""

    slots: HostSlots
    """Slots of this host for sandboxes."""

    options: WorkerOptions
    """Options of the worker."""
    installed: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)
    """Services that the image of a task in its world has, as far as this process has seen them start; by the digests of
    task and world. Later sandboxes need no probes for them.
    """

    _jobs: dict[str, JobSpec] = field(default_factory=dict)
    _tasks: dict[str, Task] = field(default_factory=dict)
    _sandboxes: dict[tuple[str, str], Sandbox] = field(default_factory=dict)
    _unpacking: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def load_job(self, ref: ArtifactRef) -> JobSpec:
        """Return a job's specification, read from the store once and cached. Raises `StoreError`."""
        if ref.sha256 not in self._jobs:
            if len(self._jobs) > 16:
                self._jobs.clear()
            self._jobs[ref.sha256] = JobSpec.model_validate_json(await self.store.read(ref))
        return self._jobs[ref.sha256]

    async def fetch_directory(self, ref: ArtifactRef) -> Path:
        """Return the directory of an archive in the store, fetched and unpacked on this host once per digest.

        Each call also updates the directory's time, by which unused ones are removed.

        Raises:
            StoreError: It can't be fetched or written.
        """
        target = self.paths.tasks / ref.sha256[:32]
        with contextlib.suppress(FileNotFoundError):
            # The time of the last use, for the removal of unused directories.
            os.utime(target)
            return target
        # Without a lock, rollouts of one task that start at the same moment would fetch it into the same file.
        lock = self._unpacking.setdefault(target.name, asyncio.Lock())
        async with lock:
            if not target.is_dir():
                await asyncio.to_thread(self._make_directory)
                pack = self.paths.tasks / f".{target.name}.{os.getpid()}.tar"
                await self.store.fetch(ref, pack)
                await asyncio.to_thread(self._unpack, pack, target)
        return target

    def _make_directory(self) -> None:
        with raise_storage_errors(self.paths.tasks):
            self.paths.tasks.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _unpack(self, pack: Path, target: Path) -> None:
        # One process at a time, so that none unpacks what another has just unpacked.
        with hold_lock(self.paths.tasks / ".lock"):
            try:
                unpack(pack, target)
            finally:
                pack.unlink(missing_ok=True)

    async def load_task_files(self, ref: TaskRef) -> TaskFiles:
        """Return the task as it was submitted, with its files on this host; parsed once and cached.

        Raises:
            TaskError: The task can't be read.
            StoreError: Its files can't be fetched or written.
        """
        directory = await self.fetch_directory(ref.pack)
        context = await self.fetch_directory(ref.context) if ref.context else None
        # Tasks of the same content differ by their names.
        key = f"{ref.digest} {ref.name}"
        if key not in self._tasks:
            if len(self._tasks) > 256:
                self._tasks.clear()
            self._tasks[key] = await asyncio.to_thread(
                load_task, directory, context_root=context, name=ref.name, has_manifest=ref.has_world_image
            )
        return TaskFiles(self._tasks[key], directory, context)

    async def attach_sandbox(self, ref: SandboxRef) -> Sandbox:
        """Return a handle of a running sandbox, attached once per process and cached. Raises `SandboxLostError`."""
        key = (ref.name, ref.episode)
        if key not in self._sandboxes:
            self._sandboxes[key] = await get_provider(ref.provider).attach(ref)
        return self._sandboxes[key]

    def cache_sandbox(self, sandbox: Sandbox) -> None:
        """Put a started sandbox into the cache of `sandbox`."""
        self._sandboxes[(sandbox.ref.name, sandbox.ref.episode)] = sandbox

    def forget(self, name: str, *, episode: str | None = None) -> Sandbox | None:
        """Drop a sandbox from the cache of `sandbox`, and return it; None if it was not attached.

        Args:
            name: Name of the sandbox.
            episode: Rollout namespace in it; None for all handles of the sandbox.
        """
        keys = [key for key in self._sandboxes if key[0] == name and episode in (None, key[1])]
        return [self._sandboxes.pop(key) for key in keys][-1] if keys else None

    def release(self, name: str) -> None:
        """Remove the session files of a sandbox that is gone, drop it from the cache, and free its slot."""
        self.forget(name)
        remove_sessions(self.paths.sessions / name)
        self.slots.free(name)

    def is_origin(self, origin: Origin) -> bool:
        """Return whether this host is the one where the job was submitted, and its results are stored."""
        return origin.host_id == self.host_id
