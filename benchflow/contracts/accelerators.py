"""Optional protocols of sandbox drivers: operations that a driver can do faster than the engine's generic code.

A driver that has all methods of one of these protocols is called in place of the generic code. The result must be the
same: the conformance suite runs the same tests over both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import IO, Protocol, runtime_checkable

from benchflow.contracts.base import ArtifactRef, BlobStore, Model
from benchflow.contracts.driver import Process, ProcessStatus, StartedSandbox
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import ExecChunk, SandboxSpec
from benchflow.contracts.sandbox_provider import EntrypointState


@runtime_checkable
class AwaitsProcesses(Protocol):
    """A driver that can wait for the end of a process without polling."""

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Wait for the end of a process and return its status. Cancelling leaves the process running."""
        ...


class ProcessOutput(Model):
    """The output of a process: all of it, or the first and the last part."""

    stdout: str = ""
    """Stdout as text; its first and last part if it was too long."""

    stderr: str = ""
    """Stderr, likewise."""

    truncated: bool = False
    """Whether the middle of stdout or stderr was left out."""


@runtime_checkable
class StreamsProcesses(Protocol):
    """A driver that can stream the output of a process."""

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code."""
        ...


@runtime_checkable
class KeepsProcesses(Protocol):
    """A driver that stores outputs and exit codes out of the sandbox's reach, and knows all descendants of a process.

    It knows them whatever the process has done to hide them. For other drivers the engine puts a small shell in front
    of each command, which writes outputs and exit code to files in the sandbox, and finds descendants by a marker in
    their environment.
    """

    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process, as `SandboxDriver.spawn`."""
        ...

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return the status of a process. Raises `SandboxError` if it has ended with an unknown exit code."""
        ...

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Wait for the end of a process and return its status. Cancelling leaves the process running."""
        ...

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output as it comes, then its exit code. Closing the generator early kills it."""
        ...

    async def kill(self, handle: str, process_id: str) -> bool:
        """Kill a process and all its descendants, as `SandboxDriver.kill`. One that has ended is success."""
        ...

    async def processes(self, handle: str) -> list[RunningProcess]:
        """Return all processes but the sandbox's first one, each with the id of the command above it as `group`."""
        ...

    async def kill_processes(self, handle: str, spared: Callable[[list[RunningProcess]], set[int]]) -> int:
        """Kill all processes but the sandbox's first one and the spared ones, and return how many were killed.

        Args:
            handle: The sandbox.
            spared: Callback that returns the pids of the processes to spare. It receives all processes, while none of
                them can fork.
        """
        ...

    async def output(self, handle: str, process_id: str) -> ProcessOutput:
        """Return the output of a process, at most `outcome.OUTPUT_CAP` bytes each of stdout and stderr."""
        ...

    async def output_tail(self, handle: str, process_id: str, limit: int) -> str:
        """Return the end of stdout, at most `limit` bytes."""
        ...

    async def trim_output(self, handle: str, process_id: str) -> None:
        """Remove the middle of outputs that are larger than `outcome.OUTPUT_ON_DISK` bytes from the disk."""
        ...

    async def forget(self, handle: str, process_id: str) -> None:
        """Remove the stored output and exit code of a process that has ended."""
        ...


@runtime_checkable
class SeesProcesses(Protocol):
    """A driver that lists and kills the processes of its sandboxes from outside, without programs of the sandbox.

    For other drivers a script in the sandbox does that.
    """

    async def running(self, handle: str) -> dict[int, RunningProcess] | None:
        """Return all processes of a sandbox, by the driver's own numbers; None if this host does not see them.

        The pids in the rows are those of the sandbox.
        """
        ...

    async def kill_running(self, handle: str, numbers: Sequence[int]) -> None:
        """Kill processes, by the numbers of `running`. One that has ended is success."""
        ...

    def standing_still(self, handle: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which no process of the sandbox runs, so that none can start another one."""
        ...

    def without_scripts(self, handle: str) -> AbstractAsyncContextManager[None]:
        """Return a context in which no script of the engine runs in the sandbox, nor a shell for scripts.

        Every process that `running` lists is then the sandbox's own, and none can pass for the engine's.
        """
        ...


@runtime_checkable
class SeesCode(Protocol):
    """A driver that reads the code that its sandboxes' processes execute, without programs of the sandbox.

    With other drivers, code that was injected into a running process is not detected.
    """

    async def code(self, handle: str, numbers: Sequence[int]) -> dict[int, str]:
        """Return, for each process, a digest of its code in memory that differs from the program's file.

        The digest is empty if no code differs. It is `FOREIGN_CODE` for a process whose program the driver knows, and
        which executes something else. Processes that can't be inspected are left out.

        Args:
            handle: The sandbox, whose processes must not be frozen.
            numbers: Numbers from `SeesProcesses.running`, or pids from `KeepsProcesses.processes`.
        """
        ...


@runtime_checkable
class AccessesFiles(Protocol):
    """A driver that reads and writes single files faster than as archives."""

    async def read(self, handle: str, path: str, limit: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError: There is no such file.
            SandboxError: It has more than `limit` bytes.
        """
        ...

    async def write(self, handle: str, path: str, content: bytes, mode: int, user: str) -> None:
        """Write a file with this mode and owner, and create missing parent directories."""
        ...

    async def unpack(self, handle: str, directory: str, archive: IO[bytes], user: str) -> None:
        """Unpack an archive as `SandboxDriver.put`, with `user` as the owner of all files."""
        ...


@runtime_checkable
class ReachesIn(Protocol):
    """A driver that reads single files from outside, without programs of the sandbox."""

    async def read_outside(self, handle: str, path: str) -> bytes | None:
        """Return the content of a file, with links resolved as inside; None if there is none."""
        ...

    async def read_original(self, handle: str, path: str) -> bytes | None:
        """Return the content of a file in the sandbox's image, at a path without links; None if it is no file there."""
        ...


@runtime_checkable
class ListsChanges(Protocol):
    """A driver that lists from outside which files of a sandbox differ from its image.

    For other drivers the engine reads all files of a sandbox as an archive.
    """

    async def changes(self, handle: str, known: FileChanges | None, skip: Sequence[str]) -> FileChanges:
        """Return the files that differ from the sandbox's image, or from the image of `known`.

        Args:
            handle: The sandbox, which runs on.
            known: Earlier changes, of this sandbox or of one that it was forked from; None for none.
            skip: Paths that are left out, with all that is below them.

        Raises:
            SandboxError: The sandbox is not based on the image of `known`.
        """
        ...

    async def originals(self, handle: str, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return the files of the image `base` at paths without links, with digests. Missing ones are left out."""
        ...


@runtime_checkable
class CountsMemory(Protocol):
    """A driver that reads the memory counters of its sandboxes."""

    async def memory_use(self, handle: str) -> MemoryUse | None:
        """Return the memory counters of a sandbox, also of one that has ended; None if there are none."""
        ...


@runtime_checkable
class Freezes(Protocol):
    """A driver whose sandboxes can be frozen for any time, and stay so when processes of the engine die."""

    async def freeze(self, handle: str) -> None:
        """Freeze all processes of a sandbox. One that is frozen already is success."""
        ...

    async def thaw(self, handle: str) -> None:
        """Resume the processes of a sandbox. One that is not frozen is success."""
        ...

    async def is_frozen(self, handle: str) -> bool:
        """Return whether a sandbox was frozen by `freeze`, and not thawed since."""
        ...


@runtime_checkable
class RestoreAccelerator(Protocol):
    """A driver that restores a sandbox from a capture, under the same handle."""

    async def restore(self, name: str, handle: str, image: ImageRef) -> None:
        """Replace a sandbox's files by those of an image, and end its processes. A missing image changes nothing."""
        ...


@runtime_checkable
class ForkAccelerator(Protocol):
    """A driver that starts copies of a running sandbox faster than from a capture."""

    async def fork(self, handle: str, names: Sequence[str]) -> list[StartedSandbox]:
        """Start a sandbox for each name, with the files of this one, all as of one moment.

        If sandboxes of all these names exist, they are returned.
        """
        ...


@runtime_checkable
class PacksCaptures(Protocol):
    """A driver that can transfer captures to other hosts."""

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a capture to the store, except for parts that are there already, and return a reference to it."""
        ...

    async def unpack_capture(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Find the capture with a name, else create it from a pack.

        Raises:
            ForeignSnapshotError: This host can't use the pack.
        """
        ...


ENTRYPOINT_KEY = "benchflow/entrypoint"
"""Key of the command that runs an image's entrypoint, for drivers that have no key of their own. A restore forgets that
the command was run, so that the entrypoint is started anew."""


class EntrypointProgram(Model):
    """The command that an image runs by itself: ENTRYPOINT, then CMD."""

    argv: tuple[str, ...]
    """Words of ENTRYPOINT, then those of CMD."""

    env: dict[str, str] = {}
    """Variables of the entrypoint alone, secrets included, besides those of every process of the sandbox."""

    cwd: str = "/"
    """Working directory: that of the spec, else the image's WORKDIR."""

    user: str = "0"
    """The image's USER; `0` is root."""


@runtime_checkable
class RunsEntrypoints(Protocol):
    """A driver that runs an image's entrypoint, in the way that `SandboxSpec.entrypoint` names."""

    def runs_below(self, spec: SandboxSpec) -> bool:
        """Return whether the engine runs the entrypoint as a command, and it is not the sandbox's first process."""
        ...

    def entrypoint_key(self, handle: str) -> str:
        """Return the key of the command that runs the entrypoint.

        `ENTRYPOINT_KEY` if a restored sandbox is to start the entrypoint anew under the same key.
        """
        ...

    async def program(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> EntrypointProgram | None:
        """Return the entrypoint of a spec's image; None if the engine need not start it.

        It need not if the entrypoint is the first process, which the driver has started.

        Args:
            spec: The sandbox.
            secrets: Environment of the entrypoint.

        Raises:
            SandboxStartError: The image has no entrypoint.
        """
        ...

    async def first_state(self, name: str) -> EntrypointState:
        """Return the state of an entrypoint that is the first process, also if the sandbox has ended with it."""
        ...
