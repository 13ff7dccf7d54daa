"""`LocalDriver`: finds, starts and removes sandboxes on this machine, and builds their images."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchflow.contracts.accelerators import EntrypointProgram, ProcessOutput
from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.driver import FoundSandbox, Process, ProcessStatus, SandboxDriver, ScriptResult, StartedSandbox
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import Capabilities, ExecChunk, SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState, OwnedSandbox
from benchflow.errors import SandboxError, SandboxLostError, SandboxStartError
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.driven.engine_scripts import ENGINE_DIRECTORY
from benchflow.planes.sandbox.host_code import read_codes
from benchflow.planes.sandbox.local.local_images import parse_key, read_image
from benchflow.planes.sandbox.local.machine_trial import require_machine
from benchflow.planes.sandbox.overlays import list_changes, read_originals

if TYPE_CHECKING:
    from benchflow.planes.sandbox.local.build.builder import Builder
    from benchflow.planes.sandbox.local.local_files import LocalFiles
    from benchflow.planes.sandbox.local.local_processes import LocalProcesses
    from benchflow.planes.sandbox.local.local_records import Running
    from benchflow.planes.sandbox.local.machine import Machine

STACK_LABEL = "benchflow.stack"

_MAX_ARGUMENT = 64 * 1024  # characters; the kernel takes at most 128 KiB, and a character may have several bytes
_MAX_FILE = 64 * 1024 * 1024  # bytes of a file that is read whole


class LocalDriver(SandboxDriver):
    """Driver of sandboxes that are namespaces over a copy-on-write view of this machine's root.

    The modules that run and build sandboxes are imported on first use: a client that only submits never needs them.

    Args:
        machine: Machine to use; None for one of its own, which `close` closes.
        is_bare: Whether commands run without the environment of the image and the spec.
    """

    name = "local"

    def __init__(self, machine: Machine | None = None, *, is_bare: bool = False) -> None:
        """Make it."""
        self._given = machine
        self._is_bare = is_bare
        self._names: dict[str, str] = {}
        self._commands: dict[str, LocalProcesses] = {}
        self._environments: dict[str, Mapping[str, str]] = {}

    @cached_property
    def _machine(self) -> Machine:
        from benchflow.planes.sandbox.local.machine import Machine

        return self._given or Machine()

    @cached_property
    def _builder(self) -> Builder:
        from benchflow.planes.sandbox.local.build.builder import Builder
        from benchflow.planes.sandbox.local.build.workshop import LocalWorkshop

        # Bare: the builder applies environments and users itself.
        return Builder(LocalWorkshop(self._machine, lambda: LocalDriver(self._machine, is_bare=True)))

    def capabilities(self) -> Capabilities:
        """Return the capabilities of local sandboxes."""
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
            lockdown="clean_room",
        )

    async def check(self) -> None:
        """Raise `SandboxUnavailableError`, with the remedy, if this machine can't start a sandbox now."""
        await require_machine()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Build an image from its Dockerfile, or unpack a ready one, unless that was done before; return it."""
        return await self._builder.build(config, log=log)

    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        """Find or start a sandbox. Raise `SandboxStartError` if another stack has its name, or it can't start."""
        known = self._machine.records(spec.name).spec
        if known is not None and known.labels.get(STACK_LABEL) != spec.labels.get(STACK_LABEL):
            raise SandboxStartError(
                f"a sandbox named {spec.name} exists and does not belong to this stack",
                remedy="choose another job name, or another state directory for one of the stacks",
            )
        if spec.runs_entrypoint:
            await self.program(spec, secrets)  # raises if the image has none, before anything is started
        return self._started(spec.name, await self._machine.start(spec))

    async def find(self, name: str) -> FoundSandbox | None:
        """Return the sandbox with a name, running or not; None if there is no record of it."""
        records = self._machine.records(name)
        running, spec = await asyncio.to_thread(self._machine.running, name), records.spec
        if running is None and spec is None:
            return None
        if running is not None:
            self._names[running.handle] = name
        last = running or records.running
        handle = last.handle if last is not None else ""
        return FoundSandbox(handle=handle, is_running=running is not None, labels=spec.labels if spec else {})

    async def require(self, name: str, handle: str) -> None:
        """Raise `SandboxLostError` unless this sandbox runs. Thaw it if a process that died left it frozen."""
        await asyncio.to_thread(self._machine.init_of, name, handle)
        self._names[handle] = name
        self._environments.pop(handle, None)  # a restore by another process may have changed it
        await self._machine.thaw_forgotten(name)

    async def remove(self, name: str) -> None:
        """End the sandbox with a name and remove all that it owns. Missing is success."""
        await self._machine.remove(name)
        for handle in [handle for handle, its_name in self._names.items() if its_name == name]:
            for known in (self._names, self._commands, self._environments):
                known.pop(handle, None)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Clean up after crashes, and return all sandboxes of a stack, running or not."""
        await self._machine.tidy()
        found = []
        for name, records in self._machine.all():
            spec = await asyncio.to_thread(lambda it=records: it.spec)  # type: ignore[misc]
            if spec is not None and spec.labels.get(STACK_LABEL) == stack_id:
                running = records.running
                found.append(OwnedSandbox(name=name, handle=running.handle if running else "", labels=spec.labels))
        return found

    async def sweep(self, stack_id: str) -> None:
        """Clean up after crashes; once no sandbox is left, of any stack, remove what they share."""
        await self._machine.sweep()

    async def close(self) -> None:
        """End the helper process and release the store, unless the machine was passed in."""
        if "_machine" in self.__dict__ and self._given is None:
            self._machine.close()

    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process and return without waiting for its end. One that was started is success."""
        await self._processes(handle).spawn(process)

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return the status of a process."""
        return await self._processes(handle).status(process_id)

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Wait for the end of a process and return its status."""
        return await self._processes(handle).wait(process_id)

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code."""
        return self._processes(handle).stream(process)

    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a script of the engine with /bin/sh as root. One too long for an argument is written to a file."""
        if len(script) > _MAX_ARGUMENT:
            place = f"{ENGINE_DIRECTORY}/script-{secrets.token_hex(8)}"
            await self.write(handle, place, script.encode(), 0o600, "0")
            script = f"(. {place}); status=$?; rm -f {place}; exit $status"
        return await self._processes(handle).run_script(script, sink, timeout)

    async def kill(self, handle: str, process_id: str) -> bool:
        """Kill a process and its descendants, wait for their end, and return True."""
        await self._processes(handle).kill(process_id)
        return True

    async def output(self, handle: str, process_id: str) -> ProcessOutput:
        """Return stdout and stderr of a process, without their middle if they are too long."""
        return await self._processes(handle).output(process_id)

    async def output_tail(self, handle: str, process_id: str, limit: int) -> str:
        """Return the last `limit` bytes of a process's stdout."""
        return await self._processes(handle).tail(process_id, limit)

    async def trim_output(self, handle: str, process_id: str) -> None:
        """Free the disk space of the middle of outputs that have grown too large."""
        await self._processes(handle).trim(process_id)

    async def forget(self, handle: str, process_id: str) -> None:
        """Remove the stored outputs and exit code of a process that has ended."""
        await self._processes(handle).forget(process_id)

    async def processes(self, handle: str) -> list[RunningProcess]:
        """Return the processes of all commands, without the sandbox's first process."""
        return await asyncio.to_thread(self._processes(handle).all_running, self._first_groups(handle))

    async def kill_processes(self, handle: str, spared: Callable[[list[RunningProcess]], set[int]]) -> int:
        """Kill the processes of all commands but those that `spared` returns; return how many were killed."""
        first = self._first_groups(handle)
        async with self._machine.standing_still(self._name(handle)):
            return await asyncio.to_thread(self._processes(handle).kill_all_but, first, spared)

    async def code(self, handle: str, numbers: Sequence[int]) -> dict[int, str]:
        """Return, by pid, a digest of the code in memory that differs from the program's file; empty for none."""
        return await asyncio.to_thread(read_codes, numbers)

    def _first_groups(self, handle: str) -> tuple[str, Collection[str]]:
        """Return the cgroups of the sandbox's first process, and of the image's entrypoint."""
        from benchflow.planes.sandbox.local.local_entrypoint import find_entrypoint_group
        from benchflow.planes.sandbox.local.machine import INIT

        name = self._name(handle)
        self._machine.init_of(name, handle)
        return INIT, find_entrypoint_group(self._machine.records(name).running)

    async def memory_use(self, handle: str) -> MemoryUse | None:
        """Return the sandbox's memory counters; None if there are none."""
        return await asyncio.to_thread(self._machine.cgroups.sandbox(self._name(handle)).memory_use)

    async def freeze(self, handle: str) -> None:
        """Freeze the sandbox until `thaw`, even if this process dies."""
        name = self._name(handle)
        self._machine.init_of(name, handle)
        async with self._machine.standing_still(name):
            self._machine.records(name).is_frozen = True  # first, or a cleanup would thaw it as forgotten
            await run_to_completion(asyncio.to_thread(self._machine.cgroups.sandbox(name).freeze))

    async def thaw(self, handle: str) -> None:
        """Resume the sandbox's processes. One that is not frozen is success."""
        name = self._name(handle)
        if not self._machine.records(name).is_frozen:
            return
        async with self._machine.standing_still(name):
            await run_to_completion(asyncio.to_thread(self._machine.cgroups.sandbox(name).thaw))
            self._machine.records(name).is_frozen = False

    async def is_frozen(self, handle: str) -> bool:
        """Return whether the sandbox was frozen by `freeze`, and not thawed since."""
        return self._machine.records(self._name(handle)).is_frozen

    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        """Unpack a tar archive into a directory, with its owners and modes."""
        await self._files(handle).unpack(directory, archive, None)

    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file or directory to `take` as a tar archive. Return whether it is a file; None if missing."""
        return await self._files(handle).pack(path, take)

    async def read(self, handle: str, path: str, limit: int) -> bytes:
        """Return a file's content. Raise `FileNotFoundError`, or `SandboxError` beyond `limit` bytes."""
        return await self._files(handle).read(path, limit)

    async def write(self, handle: str, path: str, content: bytes, mode: int, user: str) -> None:
        """Write a file with this mode and owner in place of what is there, and create missing parents."""
        await self._files(handle).write(path, content, mode, user)

    async def unpack(self, handle: str, directory: str, archive: IO[bytes], user: str) -> None:
        """Unpack a tar archive into a directory, with `user` as the owner of all files."""
        await self._files(handle).unpack(directory, archive, user)

    async def read_outside(self, handle: str, path: str) -> bytes | None:
        """Return a file's content; None if there is none."""
        try:
            return await self.read(handle, path, _MAX_FILE)
        except FileNotFoundError:
            return None

    async def read_original(self, handle: str, path: str) -> bytes | None:
        """Return a file's content in the sandbox's image; None if it is no file there."""
        _, overlay = await asyncio.to_thread(self._machine.overlay, self._name(handle))
        return await asyncio.to_thread(overlay.read_original, path)

    async def changes(self, handle: str, known: FileChanges | None, skip: Sequence[str]) -> FileChanges:
        """Return the files that differ from the image. Raise `SandboxError` if that is not the one of `known`."""
        base, overlay = await asyncio.to_thread(self._machine.overlay, self._name(handle))
        if known is not None and known.base != base:
            raise SandboxError(
                "its image is not made over the one that its files are to be compared with",
                remedy="run this rollout again in a fresh sandbox",
            )
        return await list_changes(base, overlay, known, skip)

    async def originals(self, handle: str, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return the files of the sandbox's image at these paths. Missing ones are left out."""
        _, overlay = await asyncio.to_thread(self._machine.overlay, self._name(handle))
        return await read_originals(overlay, paths)

    async def address(self, handle: str, port: int) -> tuple[str, int] | None:
        """Return the host and port at which this host reaches a port; None if there is no network."""
        name = self._name(handle)
        self._machine.init_of(name, handle)
        running = self._machine.records(name).running
        return (running.address, port) if running is not None and running.address is not None else None

    def runs_below(self, spec: SandboxSpec) -> bool:
        """Return True: the engine runs the entrypoint as a command below the first process."""
        return True

    def entrypoint_key(self, handle: str) -> str:
        """Return the key of the entrypoint's command, a new one after each restart of the sandbox."""
        from benchflow.planes.sandbox.local.local_entrypoint import make_entrypoint_key as entrypoint_key_of

        running = self._machine.records(self._name(handle)).running
        if running is None:
            raise SandboxLostError(f"the sandbox {self._name(handle)} no longer runs")
        return entrypoint_key_of(running)

    async def program(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> EntrypointProgram | None:
        """Return the image's entrypoint; None if the image is gone. Raise `SandboxStartError` if it has none."""
        from benchflow.planes.sandbox.local.local_entrypoint import make_entrypoint_program

        key = parse_key(spec.image)
        async with self._machine.using():
            await asyncio.to_thread(self._machine.store.open)
            image = await asyncio.to_thread(read_image, self._machine.store.root, key) if key else None
        return None if image is None and key else make_entrypoint_program(spec, image, secrets)  # a start would fail

    async def first_state(self, name: str) -> EntrypointState:
        """Raise `UnsupportedFeatureError`: an entrypoint is never the first process."""
        raise self.unsupported("entrypoint", "none of them is an entrypoint itself", remedy="run it below")

    async def capture(self, handle: str, name: str) -> ImageRef:
        """Capture the files of a running sandbox, as of one moment, as the image `name`."""
        return await self._machine.snapshot(self._name(handle), name)

    async def restore(self, name: str, handle: str, image: ImageRef) -> None:
        """Replace the sandbox's files by an image's and end its processes. The handle stays the same."""
        self._started(name, await self._machine.restore(name, image))

    async def fork(self, handle: str, names: Sequence[str]) -> list[StartedSandbox]:
        """Start a sandbox for each name, with the files of this one, all as of one moment."""
        started = await self._machine.fork(self._name(handle), names)
        return [self._started(name, running) for name, running in zip(names, started, strict=True)]

    async def remove_image(self, image: ImageRef) -> None:
        """Remove a capture or a built image. A missing one, or the bare host, is success."""
        key = parse_key(image)
        if key is not None:
            await self._machine.remove_image(key)

    async def remove_captures(self, prefix: str) -> None:
        """Remove the images whose keys begin with `prefix`."""
        await self._machine.remove_images(prefix)

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a capture, and the layer below it, to the store, and return a reference to the pack."""
        from benchflow.planes.sandbox.local.local_packs import LocalPacks

        return await LocalPacks(self._machine).pack(image, store)

    async def unpack_capture(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Create the capture `name` from a pack. Raise `ForeignSnapshotError` if it needs another host."""
        from benchflow.planes.sandbox.local.local_packs import LocalPacks

        return await LocalPacks(self._machine).unpack(pack, name, store)

    def _started(self, name: str, running: Running) -> StartedSandbox:
        self._names[running.handle] = name
        self._environments.pop(running.handle, None)
        return StartedSandbox(handle=running.handle, warnings=running.warnings, workdir=running.workdir)

    def _name(self, handle: str) -> str:
        """Return the name of the sandbox with a handle. Raise `SandboxLostError` if there is none."""
        if handle not in self._names:
            for name, records in self._machine.all():
                if (running := records.running) is not None:
                    self._names[running.handle] = name
        if handle not in self._names:
            raise SandboxLostError("the sandbox no longer runs")
        return self._names[handle]

    def _processes(self, handle: str) -> LocalProcesses:
        from benchflow.planes.sandbox.local.local_processes import LocalProcesses

        if handle not in self._commands:
            name, machine = self._name(handle), self._machine
            records = machine.records(name)
            self._commands[handle] = LocalProcesses(
                machine.helper,
                machine.cgroups.sandbox(name),
                records.directory,
                lambda: self._environment(handle),
                lambda: machine.init_of(name, handle),
            )
        return self._commands[handle]

    def _files(self, handle: str) -> LocalFiles:
        from benchflow.planes.sandbox.local.local_files import LocalFiles

        name, machine = self._name(handle), self._machine
        return LocalFiles(machine.helper, machine.records(name).directory, lambda: machine.init_of(name, handle))

    def _environment(self, handle: str) -> Mapping[str, str]:
        """Return the environment of a sandbox's commands: the image's, overridden by the spec's."""
        if handle not in self._environments:
            spec = None if self._is_bare else self._machine.records(self._name(handle)).spec
            key = parse_key(spec.image) if spec is not None else None
            image = read_image(self._machine.store.root, key) if key else None
            self._environments[handle] = (image.env if image else {}) | (spec.env if spec is not None else {})
        return self._environments[handle]
