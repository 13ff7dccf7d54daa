"""The implementation of `contracts.sandbox.Sandbox` over a driver."""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal, Protocol

from benchflow.contracts.accelerators import (
    CountsMemory,
    Freezes,
    KeepsProcesses,
    ListsChanges,
    ReachesIn,
    SeesCode,
)
from benchflow.contracts.driver import SandboxDriver
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult, SandboxRef
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.archives import make_header
from benchflow.planes.sandbox.driven.command_executions import CommandRequest, Executions, SandboxProcesses
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.processes_inside import ProcessesInside
from benchflow.planes.sandbox.driven.processes_outside import ProcessesOutside
from benchflow.planes.sandbox.driven.sandbox_files import SandboxFiles
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords, make_process_id
from benchflow.planes.sandbox.driven.started_sandboxes import StartedSandboxRecord
from benchflow.planes.sandbox.driven.world_processes import WorldProcesses
from benchflow.planes.sandbox.driven.wrapped import CommandFiles
from benchflow.planes.sandbox.file_listing import list_archive
from benchflow.planes.sandbox.outcome import TIMED_OUT
from benchflow.planes.sandbox.timeouts import awake_timeout

_KERNELS = ("/proc", "/sys", "/dev")
"""Directories whose files the kernel makes. They are left out of `changes`."""


class SandboxConnection:
    """One process's connection to a sandbox: its records, scripts, files and executions.

    It can be made again at any time: nothing in it is the only copy.
    """

    def __init__(self, driver: SandboxDriver, place: StartedSandboxRecord) -> None:
        """Connect to the sandbox of `place`, without any request to it."""
        self.place = place
        self.records = SandboxRecords(place.handle)
        self.world = WorldProcesses(self.records)
        self.scripts = EngineScripts(driver, place.driver_handle)
        self.files = SandboxFiles(driver, place.driver_handle, self.scripts)
        self.inside: ProcessesInside | None = None
        processes: SandboxProcesses
        if isinstance(driver, KeepsProcesses):
            processes = ProcessesOutside(driver, place.driver_handle)
        else:
            files = CommandFiles(self.scripts)
            form = place.spec.entrypoint
            processes = self.inside = ProcessesInside(
                driver, place.driver_handle, self.scripts, self.records, form, files
            )
        self._driver = driver
        self.executions = Executions(processes, self.records, self._require_alive)

    async def _require_alive(self) -> None:
        """Raise `SandboxLostError` unless the sandbox runs a script: the driver may notice its end a moment later."""
        name, handle = self.place.spec.name, self.place.driver_handle
        await self._driver.require(name, handle)
        try:
            await self.scripts.run(":")
        except SandboxLostError:
            # The driver has recorded the end by now, and its error has the reason.
            await self._driver.require(name, handle)
            raise


class SandboxLifecycle(Protocol):
    """The operations on a sandbox as a whole, which `DrivenProvider` implements."""

    async def restore(self, ref: SandboxRef, image: ImageRef) -> SandboxConnection:
        """Restart a sandbox from an image and return the new connection."""
        ...

    async def fork(self, ref: SandboxRef, names: Sequence[str]) -> list[SandboxRef]:
        """Start copies of a sandbox under these names and return their references."""
        ...

    async def read_original(self, ref: SandboxRef, path: str) -> bytes | None:
        """Return the content of a file of the sandbox's image; None if it has none at `path`."""
        ...

    async def end(self, ref: SandboxRef) -> None:
        """Remove a sandbox, unless another one has its name by now."""
        ...


class DrivenSandbox:
    """A running sandbox over a driver, from `start` or `attach` of `DrivenProvider`.

    `contracts.sandbox.Sandbox` describes its methods.
    """

    def __init__(
        self, driver: SandboxDriver, connection: SandboxConnection, ref: SandboxRef, lives: SandboxLifecycle
    ) -> None:
        """Make the sandbox of `ref` over a driver; `lives` restores, forks and removes it."""
        self._driver = driver
        self._connection = connection
        self._ref = ref
        self._lives = lives

    @property
    def ref(self) -> SandboxRef:
        """Return the reference by which any process finds this sandbox again."""
        return self._ref

    # --- commands ------------------------------------------------------------------------------------

    async def exec(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        """Run a command to its end and return its result. A timeout, or cancelling the call, kills it."""
        return await self._connection.executions.run(self._command(cmd, env, cwd, user), timeout)

    async def control(
        self, script: str, *args: str, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> SandboxExecResult:
        """Run a short script of the engine as root, with `args` as `$1` and so on, and return its result.

        The result has `timed_out` after `timeout` seconds. With `sink`, it has no stdout: the callback receives it in
        pieces.
        """
        line = f"set -- {shlex.join(args)}\n{script}" if args else script
        try:
            async with awake_timeout(timeout):
                result = await self._connection.scripts.run(line, sink=sink, timeout=None)
        except TimeoutError:
            await self._driver.ping()
            return SandboxExecResult(return_code=TIMED_OUT, timed_out=True)
        return SandboxExecResult(
            return_code=result.exit_code,
            stdout=result.out.decode(errors="replace"),
            stderr=result.err.decode(errors="replace"),
        )

    async def exec_once(
        self,
        key: str,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        """Run a command at most once under a key, or attach to the one that was started, and return its result."""
        return await self._connection.executions.run_once(self._key(key), self._command(cmd, env, cwd, user), timeout)

    async def was_started(self, key: str) -> bool:
        """Return whether `exec_once` has started a command under `key`, in any process."""
        return await self._connection.executions.was_started(self._key(key))

    async def kill_once(self, key: str) -> None:
        """Kill the command under `key`, with all its descendants. Success if none runs."""
        await self._connection.executions.kill_once(self._key(key))

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        """Run a command and yield its output as it comes, then its exit status. Leaving early kills it."""
        return self._connection.executions.stream(self._command(cmd, env, cwd, user))

    # --- files ---------------------------------------------------------------------------------------

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file, at most 64 MiB. Raise `FileNotFoundError` if there is none."""
        return await self._connection.files.read(path)

    async def read_file(self, path: str) -> str:
        """Return the content of a UTF-8 text file. Raise `SandboxError` if it is not UTF-8."""
        content = await self.read_bytes(path)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise SandboxError("is not UTF-8 text", file=path, remedy="read it with `read_bytes`") from error

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        """Write a file owned by `user`, and make its parent directories. Text is written as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        await self._connection.files.write(path, data, mode, _format_user(user))

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        """Copy a file, or a directory's content, from the host, without paths that match an `exclude` pattern."""
        await self._connection.files.upload(source, target, _format_user(user), exclude)

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        """Copy a file, or the content of a directory, to the host. Return False if `source` does not exist."""
        return await self._connection.files.download(source, target, exclude)

    async def read_outside(self, path: str) -> bytes | None:
        """Return a file's content, without running programs of the sandbox if possible; None if it is missing."""
        if isinstance(self._driver, ReachesIn):
            return await self._driver.read_outside(self._handle, path)
        try:
            return await self._connection.files.read_archived(path)
        except FileNotFoundError:
            return None

    async def put_outside(self, files: Mapping[str, tuple[FileState, bytes]]) -> None:
        """Write files and symbolic links, by absolute path, as an archive of the driver."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, (state, content) in files.items():
                info = make_header(path.lstrip("/"), state.mode, (state.uid, state.gid), len(content))
                if state.kind == "link":
                    info.type, info.linkname, info.size = tarfile.SYMTYPE, state.target, 0
                archive.addfile(info, io.BytesIO(content))
        with tempfile.TemporaryFile() as file:
            file.write(packed.getvalue())
            file.flush()
            file.seek(0)
            await self._driver.put(self._handle, "/", file)

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        """Write a file owned by root, as `put_outside`."""
        await self.put_outside({path: (FileState(kind="file", mode=mode), content)})

    async def changes(self, known: FileChanges | None = None, *, skip: Sequence[str] = ()) -> FileChanges:
        """Return the files that differ from the image, except below `skip`, as `contracts.sandbox.Sandbox.changes`.

        Without a driver that lists changes, all files are listed; none if only programs of the sandbox could read them.
        """
        left_out = [*_KERNELS, *skip]
        if isinstance(self._driver, ListsChanges):
            return await self._driver.changes(self._handle, known, left_out)
        if self._driver.capabilities().lockdown == "none":
            # Such a driver's archives are made by programs of the sandbox, which the agent may have changed.
            return FileChanges()
        with tempfile.TemporaryFile() as packed:
            if await self._driver.get(self._handle, "/", _written_to(packed)) is None:
                return FileChanges()
            packed.seek(0)
            return await asyncio.to_thread(list_archive, packed, left_out)

    async def originals(self, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return the files of the image `base` at these paths; none if the driver does not list changes."""
        return await self._driver.originals(self._handle, base, paths) if isinstance(self._driver, ListsChanges) else {}

    async def read_original(self, path: str) -> bytes | None:
        """Return the content of a file of the sandbox's image; None if it has none at `path`."""
        if isinstance(self._driver, ReachesIn):
            return await self._driver.read_original(self._handle, path)
        return await self._lives.read_original(self._ref, path)

    # --- processes -----------------------------------------------------------------------------------

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        """Kill the processes that are not the world's, or all with `keep="nothing"`, and return their number."""
        if self._connection.inside is not None:
            return await self._connection.inside.kill_unknown(keep_services=keep == "services")
        assert isinstance(self._driver, KeepsProcesses)
        world = self._connection.world
        altered = {process.identity for process in await self.strangers() if process.is_altered}

        def spared(processes: list[RunningProcess]) -> set[int]:
            if keep == "nothing":
                return set()
            table = {process.pid: process for process in processes}
            services = {pid for pid in world.services(table) if table[pid].identity not in altered}
            return services | world.left_alone(table, table.keys() - services, services)

        return await self._driver.kill_processes(self._handle, spared)

    async def strangers(self) -> list[RunningProcess]:
        """Return the running processes that are not the world's, or whose code was changed (`is_altered`)."""
        if self._connection.inside is not None:
            return await self._connection.inside.hunter.strangers()
        assert isinstance(self._driver, KeepsProcesses)
        table = {process.pid: process for process in await self._driver.processes(self._handle)}
        services = self._connection.world.services(table)
        table |= {process.pid: process for process in await self._with_code([table[pid] for pid in services])}
        altered = self._connection.world.altered(table)
        return [
            replace(process, is_altered=pid in altered)
            for pid, process in sorted(table.items())
            if (pid not in services or pid in altered) and process.state != "Z"
        ]

    async def _with_code(self, processes: list[RunningProcess]) -> list[RunningProcess]:
        """Return processes with digests of their code, if the driver can read it."""
        if not isinstance(self._driver, SeesCode):
            return processes
        codes = await self._driver.code(self._handle, [process.pid for process in processes])
        return [replace(process, code=codes.get(process.pid)) for process in processes]

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        """Record processes as the world's: all that run now, those of the command under `key`, or the entrypoint's."""
        records = self._connection.records
        process_id = records.command(key).stem if key is not None and records.command(key).exists() else None
        if self._connection.inside is not None:
            return await self._connection.inside.mark_baseline(process_id, is_all=key is None, is_restored=is_restored)
        assert isinstance(self._driver, KeepsProcesses)
        await self._driver.require(self._ref.name, self._handle)
        found = await self._driver.processes(self._handle)
        if is_restored:
            found = [process for process in found if not process.entered]
        elif key is not None:
            found = [process for process in found if process.group == make_process_id(key)]
        self._connection.world.record(await self._with_code(found), besides=is_restored or key is not None)

    async def memory_use(self) -> MemoryUse | None:
        """Return the memory counters; None if the driver has none."""
        if isinstance(self._driver, CountsMemory):
            return await self._driver.memory_use(self._handle)
        return None

    async def expose_port(self, port: int) -> tuple[str, int]:
        """Return host and port at which this host reaches a port. Raise `SandboxError` without a network."""
        address = await self._driver.address(self._handle, port)
        if address is None:
            await self._driver.require(self._ref.name, self._handle)
            raise SandboxError(
                f"port {port} of the sandbox cannot be reached: it has no network",
                key="network_mode",
                remedy='use network_mode = "public"',
            )
        return address

    # --- states --------------------------------------------------------------------------------------

    async def snapshot(self, name: str) -> ImageRef:
        """Capture the files as an image with this name, and return its reference. The sandbox runs on."""
        return await self._driver.capture(self._handle, name)

    async def restore(self, image: ImageRef) -> None:
        """Restart the sandbox from an image, with none of its processes."""
        self._connection = await self._lives.restore(self._ref, image)

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        """Start copies of this sandbox under these names and return their references."""
        return await self._lives.fork(self._ref, names)

    async def freeze(self) -> None:
        """Stop all processes until `thaw`. Raise `UnsupportedFeatureError` if the driver cannot."""
        await self._freezer.freeze(self._handle)

    async def thaw(self) -> None:
        """Resume the processes. Raise `UnsupportedFeatureError` if the driver cannot freeze any."""
        await self._freezer.thaw(self._handle)

    async def is_frozen(self) -> bool:
        """Return whether the sandbox was frozen and not thawed since."""
        return isinstance(self._driver, Freezes) and await self._driver.is_frozen(self._handle)

    async def stop(self) -> None:
        """Remove the sandbox and all that it owns."""
        await self._lives.end(self._ref)

    # --- names ---------------------------------------------------------------------------------------

    @property
    def _handle(self) -> str:
        return self._connection.place.driver_handle

    @property
    def _freezer(self) -> Freezes:
        if not isinstance(self._driver, Freezes):
            raise self._driver.unsupported("freeze", "they can't stand still")
        return self._driver

    def _key(self, key: str) -> str:
        """Return an idempotency key within the rollout namespace of the sandbox."""
        return f"{self._ref.episode}/{key}" if self._ref.episode else key

    def _command(
        self, cmd: Sequence[str], env: dict[str, str] | None, cwd: str | None, user: str | int | None
    ) -> CommandRequest:
        return CommandRequest(tuple(cmd), dict(env or {}), cwd or self._ref.workdir, _format_user(user))


def _written_to(file: IO[bytes]) -> Callable[[bytes], None]:
    def write(piece: bytes) -> None:
        file.write(piece)

    return write


def _format_user(user: str | int | None) -> str:
    """Return the user as the driver takes it: `0` for root."""
    return "0" if user in (None, "root", 0, "0") else str(user)
