"""This host, as all rollouts of one worker process share it: its store, its sandboxes, its unpacked tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import JobSpec, Origin, TaskRef
from benchflow.contracts.options import WorkerOptions
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.contracts.task import Task
from benchflow.host import Slots, locked
from benchflow.hosting.session_files import remove_sessions
from benchflow.paths import StatePaths
from benchflow.planes.environment import Kind
from benchflow.planes.sandbox import get_provider
from benchflow.store import Store, storage_errors
from benchflow.tasks import load_task, unpack


@dataclass(frozen=True)
class TaskFiles:
    """A task as it was submitted, with its files on this host."""

    task: Task
    directory: Path
    context: Path | None
    """Directory of its build context, where that is not its own `environment/`."""


@dataclass(kw_only=True)
class Host:
    """What the rollouts of one worker process share."""

    paths: StatePaths
    store: Store
    host_id: str
    queue: str
    """Task queue of this host."""

    stack: str
    """Identity of the stack, which labels of sandboxes carry."""

    slots: Slots
    options: WorkerOptions
    installed: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)
    """Services that the image of a task in its world has, as far as this process has seen them start; by the digests of
    task and world.
    """

    interpreters: dict[tuple[str, str], Kind] = field(default_factory=dict)
    """Interpreters of the engine's helper in images, by provider and reference."""

    _jobs: dict[str, JobSpec] = field(default_factory=dict)
    _tasks: dict[str, Task] = field(default_factory=dict)
    _sandboxes: dict[tuple[str, str], Sandbox] = field(default_factory=dict)
    _unpacking: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def job(self, ref: ArtifactRef) -> JobSpec:
        """Return a job's specification, read from the store once."""
        if ref.sha256 not in self._jobs:
            if len(self._jobs) > 16:
                self._jobs.clear()
            self._jobs[ref.sha256] = JobSpec.model_validate_json(await self.store.read(ref))
        return self._jobs[ref.sha256]

    async def directory(self, ref: ArtifactRef) -> Path:
        """Return a packed directory, unpacked on this host once per digest."""
        target = self.paths.tasks / ref.sha256[:32]
        with contextlib.suppress(FileNotFoundError):
            # When it was used last, for whoever removes what nobody uses any more.
            os.utime(target)
            return target
        # Rollouts of one task begin at the same moment; they would fetch it into the same file.
        lock = self._unpacking.setdefault(target.name, asyncio.Lock())
        async with lock:
            if not target.is_dir():
                await asyncio.to_thread(self._make_directory)
                pack = self.paths.tasks / f".{target.name}.{os.getpid()}.tar"
                await self.store.fetch(ref, pack)
                await asyncio.to_thread(self._unpack, pack, target)
        return target

    def _make_directory(self) -> None:
        with storage_errors(self.paths.tasks):
            self.paths.tasks.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _unpack(self, pack: Path, target: Path) -> None:
        with locked(self.paths.tasks / ".lock"):
            partial = target.with_name(f".{target.name}.new")
            shutil.rmtree(partial, ignore_errors=True)
            try:
                if not target.is_dir():
                    with storage_errors(partial):
                        unpack(pack, partial)
                        partial.replace(target)
            finally:
                pack.unlink(missing_ok=True)

    async def task(self, ref: TaskRef) -> TaskFiles:
        """Return the task as it was submitted, with its files on this host. Raises `TaskError`, `StoreError`."""
        directory = await self.directory(ref.pack)
        context = await self.directory(ref.context) if ref.context else None
        # Tasks of the same content differ by their names.
        key = f"{ref.digest} {ref.name}"
        if key not in self._tasks:
            if len(self._tasks) > 256:
                self._tasks.clear()
            self._tasks[key] = await asyncio.to_thread(
                load_task, directory, context_root=context, name=ref.name, has_manifest=ref.has_world_image
            )
        return TaskFiles(self._tasks[key], directory, context)

    async def sandbox(self, ref: SandboxRef) -> Sandbox:
        """Return the running sandbox of a reference, attached once per process. Raises `SandboxLostError`."""
        key = (ref.name, ref.episode)
        if key not in self._sandboxes:
            self._sandboxes[key] = await get_provider(ref.provider).attach(ref)
        return self._sandboxes[key]

    def keep(self, sandbox: Sandbox) -> None:
        """Have `sandbox` return this one for its reference."""
        self._sandboxes[(sandbox.ref.name, sandbox.ref.episode)] = sandbox

    def forget(self, name: str, *, episode: str | None = None) -> Sandbox | None:
        """Let go of a sandbox, or of one episode in it, and return it if it was attached."""
        keys = [key for key in self._sandboxes if key[0] == name and episode in (None, key[1])]
        return [self._sandboxes.pop(key) for key in keys][-1] if keys else None

    def release(self, name: str) -> None:
        """Forget a sandbox that is gone: the files of its sessions, and its slot."""
        self.forget(name)
        remove_sessions(self.paths.sessions / name)
        self.slots.free(name)

    def is_origin(self, origin: Origin) -> bool:
        """Return whether results are to lie on this very host."""
        return origin.host_id == self.host_id
