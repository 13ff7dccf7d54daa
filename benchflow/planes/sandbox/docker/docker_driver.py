"""The Docker driver. State is with the daemon and in the host's records; clients and shells here only save time."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Any

from benchflow.contracts.accelerators import ENTRYPOINT_KEY, EntrypointProgram
from benchflow.contracts.base import ArtifactRef, BlobStore
from benchflow.contracts.driver import FoundSandbox, Process, ProcessStatus, SandboxDriver, ScriptResult, StartedSandbox
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import Capabilities, ExecChunk, SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState, OwnedSandbox
from benchflow.errors import SandboxError, SandboxLostError, SandboxUnavailableError
from benchflow.host_files import hold_lock_async
from benchflow.planes.sandbox.docker import container_config, container_entrypoint, freezer, host_codes, host_processes
from benchflow.planes.sandbox.docker.captures import PART_LABEL, Captures
from benchflow.planes.sandbox.docker.changes import export_files, find_overlay
from benchflow.planes.sandbox.docker.container_archives import get_archive
from benchflow.planes.sandbox.docker.container_copies import read_handle
from benchflow.planes.sandbox.docker.container_memory import make_lost_error, read_memory_use
from benchflow.planes.sandbox.docker.container_processes import ContainerProcesses
from benchflow.planes.sandbox.docker.container_records import container_records, forget_container, is_frozen
from benchflow.planes.sandbox.docker.containers import Containers
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.docker_images import Images
from benchflow.planes.sandbox.docker.docker_networks import STACK_LABEL, DockerNetworks
from benchflow.planes.sandbox.docker.docker_packs import DockerPacks
from benchflow.planes.sandbox.docker.forks import DockerForks
from benchflow.planes.sandbox.docker.outside_reader import read_original, read_outside
from benchflow.planes.sandbox.docker.restores import SUFFIX, forget_restores
from benchflow.planes.sandbox.docker.root_shell import RootShell
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.docker.translation import NotFoundError
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.prepare import prepare_sandbox
from benchflow.planes.sandbox.overlays import list_changes, read_originals


class _Attachment:
    """A sandbox as this process uses it, on one event loop: its container, and a root shell in it."""

    def __init__(self, engine: DockerDaemon, container: str) -> None:
        self.container = container
        self.shell = RootShell(engine, container)


class DockerDriver(SandboxDriver):
    """Sandboxes as containers of the Docker daemon that DOCKER_HOST names, by default the local one."""

    name = "docker"

    def __init__(self) -> None:
        """Make it. Nothing connects to the daemon before the first call."""
        self._engine = DockerDaemon()
        self._images = Images(self._engine)
        self._networks = DockerNetworks(self._engine)
        self._captures = Captures(self._engine, self._images, self._read_info)
        self._starter = Starter(self._engine, self._read_info)
        self._containers = Containers(self._engine, self._networks, self._captures, self._starter, self._detach)
        self._forks = DockerForks(self._engine, self._starter, self._captures, self.remove)
        self._packs = DockerPacks(self._engine, self._images)
        self._processes = ContainerProcesses(self._engine)
        self._info: dict[str, Any] | None = None
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Attachment]] = (
            weakref.WeakKeyDictionary()
        )

    def capabilities(self) -> Capabilities:
        """Return the capabilities of Docker sandboxes, with those of the daemon once `check` has asked it."""
        return Capabilities(
            provider=self.name,
            network_modes=("public", "no-network"),
            users=True,
            snapshot=True,
            fork=True,
            portable=True,
            # Pausing needs control groups, which a rootless daemon does not have on old kernels.
            freeze=self._info is None or self._info.get("CgroupDriver") != "none",
            cpu_limit=True,
            memory_limit=True,
            storage_limit=False,
            dockerfile=True,
            # A remote daemon would mount directories of its own host.
            mounts=self._engine.is_local,
            isolation="container",
            lockdown="clean_room",
        )

    async def check(self) -> None:
        """Raise `SandboxUnavailableError` if the daemon does not answer, or runs no Linux containers."""
        info = await self._engine.call(lambda client: client.info())
        if info["OSType"] != "linux":
            raise SandboxUnavailableError(
                f"the Docker daemon runs {info['OSType']} containers",
                remedy="switch it to Linux containers",
            )
        self._info = info

    async def ping(self) -> None:
        """Raise `DaemonUnavailableError` if the daemon does not answer now."""
        await self._engine.require_answer()

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> ImageRef:
        """Find, pull or build an image and return its reference; the output goes to the file `log`."""
        return await self._images.build(config, log)

    async def start(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> StartedSandbox:
        """Find the running container of this name, else create and start one, and prepare its directories."""
        info = await self._read_info()
        found = await self._containers.find_for(spec)
        container = found["Id"] if found else await self._containers.create(spec, info, secrets)
        handle = read_handle(found) if found else container
        self._attach(handle, container)
        try:
            workdir = await prepare_sandbox(EngineScripts(self, handle), spec)
            if spec.entrypoint == "first":
                async with hold_lock_async(container_records(handle) / "entrypoint.lock"):
                    await container_entrypoint.send_secrets(self._engine, self._get_shell(handle), container, secrets)
        except SandboxError as error:
            # A container that ran before may be in use: the rollouts of a persistent job share one.
            if found and found["State"]["Running"]:
                raise
            wrong = await container_config.explain_failed_start(self._engine, container, error, spec.entrypoint)
            await self._containers.remove(container)
            raise wrong from error
        return StartedSandbox(handle=handle, warnings=container_config.list_warnings(spec, info), workdir=workdir)

    async def find(self, name: str) -> FoundSandbox | None:
        """Return the sandbox with a name, running or not, after finishing a restore that was interrupted."""
        found = await self._containers.restores.find(name)
        if found is None:
            return None
        labels = found["Config"]["Labels"] or {}
        return FoundSandbox(handle=read_handle(found), is_running=found["State"]["Running"], labels=labels)

    async def require(self, name: str, handle: str) -> None:
        """Raise `SandboxLostError` unless the sandbox runs. Unpause it if a dead process left it paused."""
        attached = self._list_attachments().get(handle)
        # A shell that answers proves that the container runs, sooner than the daemon could say so.
        if attached is None or is_frozen(handle) or not await attached.shell.is_alive():
            found = await self._containers.restores.find(name, handle)
            if found is None or not found["State"]["Running"]:
                raise make_lost_error(name, found)
            if found["State"]["Paused"]:
                await freezer.unpause_orphan(self._engine, found)
            self._attach(handle, found["Id"])

    async def remove(self, name: str) -> None:
        """Remove the sandbox's container, and the successor of an unfinished restore. Missing is success."""
        # The successor first: without the old container, it would take over the name.
        await self._containers.remove(name + SUFFIX)
        await self._containers.remove(name)
        forget_restores(name)

    async def owned(self, stack_id: str) -> list[OwnedSandbox]:
        """Return the stack's sandboxes, running or not, and clean up what dead processes left of them."""
        label = {"label": f"{STACK_LABEL}={stack_id}"}
        rows = await self._engine.call(lambda client: client.containers(all=True, filters=label))
        found: dict[str, OwnedSandbox] = {}
        # Successors last: they count only for a name that no other container has.
        named = [row for row in rows if row["Names"] and PART_LABEL not in row["Labels"]]
        for row in sorted(named, key=lambda row: str(row["Names"][0]).endswith(SUFFIX)):
            name = row["Names"][0].lstrip("/").removesuffix(SUFFIX)
            if row["State"] == "paused":
                await freezer.unpause_orphan(self._engine, row)
            if name in found:
                await self._containers.restores.tidy(name)
            found.setdefault(name, OwnedSandbox(name=name, handle=read_handle(row), labels=row["Labels"]))
        await self._detach_dead({sandbox.handle for sandbox in found.values()})
        await self._captures.tidy(stack_id)
        return list(found.values())

    async def sweep(self, stack_id: str) -> None:
        """Remove the stack's leftover captures, and its network once no container is left."""
        await self._captures.tidy(stack_id)
        await self._networks.sweep(stack_id)

    async def close(self) -> None:
        """Close this event loop's shells and all connections to the daemon. Containers run on."""
        for attached in self._list_attachments().values():
            attached.shell.close()
        self._list_attachments().clear()
        self._engine.close()

    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process, unless it was started."""
        await self._processes.spawn(handle, self._find_container(handle), process)

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return the status of a process."""
        return await self._processes.status(handle, self._find_container(handle), process_id)

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Wait for the end of a process and return its status."""
        return await self._processes.wait(handle, self._find_container(handle), process_id)

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code."""
        return self._processes.stream(self._find_container(handle), process)

    async def running(self, handle: str) -> dict[int, RunningProcess] | None:
        """Return the container's processes by their pids on this host; None if they can't be seen from here."""
        if not self._engine.is_local:
            return None
        found = await self._inspect(handle)
        return await asyncio.to_thread(host_processes.read_processes, found["Id"], found["State"]["Pid"])

    async def code(self, handle: str, numbers: Sequence[int]) -> dict[int, str]:
        """Return, for each pid of this host, a digest of the code that differs from the program's file."""
        found = await self._inspect(handle)
        return await asyncio.to_thread(host_codes.read_container_codes, found, numbers)

    async def kill_running(self, handle: str, numbers: Sequence[int]) -> None:
        """Kill processes of the container, by their pids on this host."""
        await asyncio.to_thread(host_processes.kill_pids, self._find_container(handle), numbers)

    def standing_still(self, handle: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which the container is paused."""
        return freezer.pause_meanwhile(self._engine, self._find_container(handle))

    def without_scripts(self, handle: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which no script runs, and no shell of the engine."""
        return self._get_shell(handle).close_meanwhile()

    async def run_script(
        self,
        handle: str,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a script in the sandbox's root shell and return its result."""
        return await self._get_shell(handle).run(script, sink=sink, timeout=timeout)

    async def renew_scripts(self, handle: str) -> None:
        """Close the root shell; the next script opens another one."""
        async with self._get_shell(handle).close_meanwhile():
            pass

    async def memory_use(self, handle: str) -> MemoryUse | None:
        """Return the memory counters, also of a container that has ended; None if there are none."""
        return await read_memory_use(self._engine, self._get_shell(handle), self._find_container(handle))

    async def freeze(self, handle: str) -> None:
        """Pause the container until `thaw`, also beyond the end of this process."""
        # A shell does not answer while the container is paused.
        self._get_shell(handle).close()
        await freezer.freeze(self._engine, self._find_container(handle), handle)

    async def thaw(self, handle: str) -> None:
        """Resume a frozen container; any other is left alone."""
        if is_frozen(handle):
            await freezer.thaw(self._engine, self._find_container(handle), handle)

    async def is_frozen(self, handle: str) -> bool:
        """Return whether the sandbox was frozen by `freeze`, and not thawed since."""
        return is_frozen(handle)

    async def put(self, handle: str, directory: str, archive: IO[bytes]) -> None:
        """Unpack a tar archive into a directory of the container."""
        container = self._find_container(handle)
        await self._engine.call(lambda client: client.put_archive(container, directory, archive))

    async def get(self, handle: str, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file or directory to `take` as a tar archive. Return whether it is a single file; None if missing."""
        return await get_archive(self._engine, self._get_shell(handle), self._find_container(handle), path, take)

    async def read_outside(self, handle: str, path: str) -> bytes | None:
        """Return a file's content, read without programs of the container; None if there is none."""
        return await read_outside(self._engine, self._find_container(handle), path)

    async def read_original(self, handle: str, path: str) -> bytes | None:
        """Return the content of a file in the container's image; None if there is none."""
        return await read_original(self._engine, self._find_container(handle), path)

    async def changes(self, handle: str, known: FileChanges | None, skip: Sequence[str]) -> FileChanges:
        """Return the files that differ from the image, or all files if this host can't read the layers."""
        base = known.base if known is not None else None
        found = await find_overlay(self._engine, await self._read_info(), self._find_container(handle), base)
        if found is None:
            return await export_files(self._engine, self._find_container(handle), skip)
        return await list_changes(*found, known, skip)

    async def originals(self, handle: str, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return the files of the image `base` at these paths; none if this host can't read the layers."""
        found = await find_overlay(self._engine, await self._read_info(), self._find_container(handle), base)
        return await read_originals(found[1], paths) if found is not None else {}

    async def address(self, handle: str, port: int) -> tuple[str, int] | None:
        """Return host and port at which a port is reached; None if the container has no network."""
        state = await self._inspect(handle)
        for published in state["NetworkSettings"]["Ports"].get(f"{port}/tcp") or ():
            return container_config.find_daemon_host(), int(published["HostPort"])
        for network in state["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                return str(network["IPAddress"]), port
        return None

    def runs_below(self, spec: SandboxSpec) -> bool:
        """Return whether the entrypoint runs as a command below an idle first process."""
        return spec.entrypoint == "below"

    def entrypoint_key(self, handle: str) -> str:
        """Return the key of the command that runs the entrypoint."""
        return ENTRYPOINT_KEY

    async def program(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> EntrypointProgram | None:
        """Return the image's entrypoint; None unless it runs below an idle first process."""
        if not self.runs_below(spec):
            return None
        program = await container_entrypoint.read_program(self._engine, spec.image.reference)
        cwd = spec.workdir or program.workdir
        return EntrypointProgram(argv=program.argv, env=dict(secrets), cwd=cwd, user=program.user)

    async def first_state(self, name: str) -> EntrypointState:
        """Return the state of an entrypoint that is the container's first process."""
        container = await self._engine.call(lambda client: client.inspect_container(name))
        return await container_entrypoint.read_first_state(self._engine, container)

    async def capture(self, handle: str, name: str) -> ImageRef:
        """Capture the files of a running container as an image, or find the capture of this name."""
        container = await self._inspect(handle)
        async with self._captures.hold(container_config.read_label(container, STACK_LABEL)):
            return await self._captures.take_snapshot(container, name)

    async def restore(self, name: str, handle: str, image: ImageRef) -> None:
        """Replace the container by one that starts from `image`, under the same handle."""
        found = await self._containers.restores.find(name, handle)
        stack = container_config.read_label(found, STACK_LABEL) if found else ""
        async with self._networks.hold(stack), self._captures.hold(stack):
            container = await self._containers.restores.restore(name, handle, image)
        self._attach(handle, container["Id"])

    async def fork(self, handle: str, names: Sequence[str]) -> list[StartedSandbox]:
        """Start, or find, one container per name with the files of this one, all as of one moment."""
        parent = await self._inspect(handle)
        stack = container_config.read_label(parent, STACK_LABEL)
        async with self._networks.hold(stack), self._captures.hold(stack):
            return [StartedSandbox(handle=child) for child in await self._forks.fork(parent, names)]

    async def remove_image(self, image: ImageRef) -> None:
        """Remove a capture or a built image. Missing is success."""
        await self._captures.remove(image.reference)

    async def remove_captures(self, prefix: str) -> None:
        """Remove the captures whose names begin with `prefix`."""
        await self._captures.remove_all(prefix)

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a capture's missing layers to the store and return a reference to the pack."""
        return await self._packs.pack(image, store)

    async def unpack_capture(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Return the capture with a name, created from a pack unless it exists."""
        return await self._packs.unpack(pack, name, store)

    async def _read_info(self) -> dict[str, Any]:
        if self._info is None:
            await self.check()
        assert self._info is not None
        return self._info

    def _list_attachments(self) -> dict[str, _Attachment]:
        """Return this event loop's sandboxes by handle."""
        return self._by_loop.setdefault(asyncio.get_running_loop(), {})

    def _attach(self, handle: str, container: str) -> _Attachment:
        """Return the cached entry of a sandbox, renewed if its container is another one by now."""
        attached = self._list_attachments()
        if handle in attached and attached[handle].container != container:
            self._detach(handle)
        return attached.setdefault(handle, _Attachment(self._engine, container))

    def _find_container(self, handle: str) -> str:
        """Return the id of a sandbox's container: the cached one, else the handle, which is its first one's id."""
        attached = self._list_attachments().get(handle)
        return attached.container if attached is not None else handle

    def _get_shell(self, handle: str) -> RootShell:
        return self._attach(handle, self._find_container(handle)).shell

    async def _inspect(self, handle: str) -> dict[str, Any]:
        """Return the `inspect` data of a running sandbox's container. Raises `SandboxLostError`."""
        found = await self._engine.inspect(self._find_container(handle))
        if not found["State"]["Running"]:
            raise make_lost_error(found["Name"].lstrip("/"), found)
        if found["State"]["Paused"]:
            await freezer.unpause_orphan(self._engine, found)
        return found

    def _detach(self, handle: str) -> None:
        """Close the shell of a sandbox, and drop all that this process has of it."""
        attached = self._list_attachments().pop(handle, None)
        if attached is not None:
            attached.shell.close()
        self._processes.forget(handle)

    async def _detach_dead(self, living: set[str]) -> None:
        """Drop the cached entries of sandboxes that another process has removed."""
        for handle in set(self._list_attachments()) - living:
            container = self._list_attachments()[handle].container
            try:
                await self._engine.call(lambda client, it=container: client.inspect_container(it))  # type: ignore[misc]
            except (SandboxLostError, NotFoundError):
                self._detach(handle)
                forget_container(container)
