"""What a driver may do itself, faster than it can be built from a driver's methods.

A driver that has all methods of one of these is called there instead. Each must come to the same as what is built
without it: the conformance suite runs the same tests over both.
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
from benchflow.contracts.provider import EntrypointState
from benchflow.contracts.sandbox import ExecChunk, SandboxSpec


@runtime_checkable
class AwaitsProcesses(Protocol):
    """A driver that learns of a process's end without asking again and again."""

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Return once a process has ended. Cancelling leaves the process running."""
        ...


class ProcessOutput(Model):
    """What a process has printed: all of it, or the first and the last part."""

    stdout: str = ""
    stderr: str = ""
    truncated: bool = False


@runtime_checkable
class StreamsProcesses(Protocol):
    """A driver that passes on the output of a process as it comes."""

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output, then its exit code."""
        ...


@runtime_checkable
class KeepsProcesses(Protocol):
    """A driver that keeps outputs and ends of its processes where the sandbox can't reach them, and knows of each
    process which one it descends from, whatever that has done to hide it.

    For other drivers the engine puts a small shell in front of each command, which writes outputs and exit code to
    files in the sandbox, and finds descendants by a mark in their environment.
    """

    async def spawn(self, handle: str, process: Process) -> None:
        """Start a process, as every driver does."""
        ...

    async def status(self, handle: str, process_id: str) -> ProcessStatus:
        """Return how a process fares. Never that its end is unknown: where it is, that is an error."""
        ...

    async def wait(self, handle: str, process_id: str) -> ProcessStatus:
        """Return once a process has ended. Cancelling leaves it running."""
        ...

    def stream(self, handle: str, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a process and yield its output, then its exit code. Leaving early kills it."""
        ...

    async def kill(self, handle: str, process_id: str) -> bool:
        """Kill a process and all it has started, as every driver may. One that has ended is success."""
        ...

    async def processes(self, handle: str) -> list[RunningProcess]:
        """Return all that runs, except the sandbox's first process; as `group`, the id of what each descends from."""
        ...

    async def kill_processes(self, handle: str, spared: Callable[[list[RunningProcess]], set[int]]) -> int:
        """Kill what runs, except the first process and those whose pids `spared` returns; the number killed.

        `spared` is given the processes while none of them can fork.
        """
        ...

    async def output(self, handle: str, process_id: str) -> ProcessOutput:
        """Return what a process has printed, at most `outcome.OUTPUT_CAP` bytes of each output."""
        ...

    async def output_tail(self, handle: str, process_id: str, limit: int) -> str:
        """Return the last bytes of standard output."""
        ...

    async def trim_output(self, handle: str, process_id: str) -> None:
        """Free the disk from the middle of outputs that have grown beyond `outcome.OUTPUT_ON_DISK`."""
        ...

    async def forget(self, handle: str, process_id: str) -> None:
        """Remove what is kept of a process that has ended."""
        ...


@runtime_checkable
class SeesProcesses(Protocol):
    """A driver that sees and ends the processes of its sandboxes with no program of theirs taking part.

    For other drivers a script in the sandbox does that.
    """

    async def running(self, handle: str) -> dict[int, RunningProcess] | None:
        """Return all processes of a sandbox, by numbers of the driver's own; None if it can't see them here.

        The numbers in them are those that they have in the sandbox.
        """
        ...

    async def kill_running(self, handle: str, numbers: Sequence[int]) -> None:
        """Kill processes, by these numbers. One that has ended is success."""
        ...

    def standing_still(self, handle: str) -> AbstractAsyncContextManager[None]:
        """While this is held, no process of a sandbox runs, so that none can start another."""
        ...

    def without_scripts(self, handle: str) -> AbstractAsyncContextManager[None]:
        """While this is held, no script of the engine's runs, nor a shell for them: all that is there is to be seen."""
        ...


@runtime_checkable
class SeesCode(Protocol):
    """A driver that sees what the processes of its sandboxes execute, with no program of theirs taking part.

    For other drivers nobody looks.
    """

    async def code(self, handle: str, numbers: Sequence[int]) -> dict[int, str]:
        """Return a digest of the code of each process that differs in memory from its file; empty if none does.

        `FOREIGN_CODE` is the code of a process of which more is known, and that is not so. Processes that can't be
        looked into are left out.

        Args:
            handle: The sandbox, which does not stand still.
            numbers: Of `SeesProcesses.running`, or pids of `KeepsProcesses.processes`.
        """
        ...


@runtime_checkable
class AccessesFiles(Protocol):
    """A driver that reads and writes single files faster than as archives."""

    async def read(self, handle: str, path: str, limit: int) -> bytes:
        """Return the content of a regular file. Raises `FileNotFoundError`; `SandboxError` if it is larger."""
        ...

    async def write(self, handle: str, path: str, content: bytes, mode: int, user: str) -> None:
        """Put a file in a place, making its parent directories."""
        ...

    async def unpack(self, handle: str, directory: str, archive: IO[bytes], user: str) -> None:
        """Unpack an archive as `put` does, with all files owned by a user."""
        ...


@runtime_checkable
class ReachesIn(Protocol):
    """A driver that reads single files with no program of the sandbox taking part."""

    async def read_outside(self, handle: str, path: str) -> bytes | None:
        """Return the content of a file, links followed as inside; None if there is none."""
        ...

    async def read_original(self, handle: str, path: str) -> bytes | None:
        """Return what the sandbox's image has at a path without links; None if that is no file."""
        ...


@runtime_checkable
class ListsChanges(Protocol):
    """A driver that knows which files of a sandbox differ from those of its image, with no program of it taking part.

    For other drivers the engine reads all files of a sandbox as an archive.
    """

    async def changes(self, handle: str, known: FileChanges | None, skip: Sequence[str]) -> FileChanges:
        """Return what differs from the sandbox's image, or from the one of `known`.

        Args:
            handle: The sandbox, which goes on.
            known: What was changed before, perhaps in a sandbox that this one was forked from.
            skip: Paths that are left out, with all that is below them.

        Raises:
            SandboxError: The sandbox does not lie over the image of `known`.
        """
        ...

    async def originals(self, handle: str, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return what the image `base` has at paths without links, with digests; without those that it has not."""
        ...


@runtime_checkable
class CountsMemory(Protocol):
    """A driver that knows how its sandboxes fare with their memory."""

    async def memory_use(self, handle: str) -> MemoryUse | None:
        """Return the counters of a sandbox, also of one that has ended; None where there are none."""
        ...


@runtime_checkable
class Freezes(Protocol):
    """A driver whose sandboxes can stand still for as long as it takes, whichever processes of the engine die."""

    async def freeze(self, handle: str) -> None:
        """Stop all processes of a sandbox where they are. A frozen one is success."""
        ...

    async def thaw(self, handle: str) -> None:
        """Let them go on. One that is not frozen is success."""
        ...

    async def is_frozen(self, handle: str) -> bool:
        """Return whether a sandbox was frozen and not thawed since."""
        ...


@runtime_checkable
class Restores(Protocol):
    """A driver that starts a sandbox again from a capture, under the same handle."""

    async def restore(self, name: str, handle: str, image: ImageRef) -> None:
        """Replace a sandbox's files and end its processes. An image that is not there leaves it as it was."""
        ...


@runtime_checkable
class Forks(Protocol):
    """A driver that starts copies of a running sandbox faster than from a capture."""

    async def fork(self, handle: str, names: Sequence[str]) -> list[StartedSandbox]:
        """Start sandboxes with the files of this one, all as of one moment. Those that all exist are the ones meant."""
        ...


@runtime_checkable
class PacksCaptures(Protocol):
    """A driver whose captures other hosts can have."""

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Bring a capture to the store. What is there of it already is not sent again."""
        ...

    async def unpack_capture(self, pack: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Find the capture of a name, else make it of a pack.

        Raises:
            ForeignSnapshotError: This host can't use it.
        """
        ...


ENTRYPOINT_KEY = "benchflow/entrypoint"
"""The key of the command that an entrypoint is, of drivers that have no other."""


class EntrypointProgram(Model):
    """What an image runs by itself: ENTRYPOINT, then CMD."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str = "/"
    user: str = "0"


@runtime_checkable
class RunsEntrypoints(Protocol):
    """A driver that runs what an image runs by itself, as `SandboxSpec.entrypoint` says."""

    def runs_below(self, spec: SandboxSpec) -> bool:
        """Return whether the entrypoint is a command of the engine's, and not the sandbox's first process."""
        ...

    def entrypoint_key(self, handle: str) -> str:
        """Return the key of the command that the entrypoint is: `ENTRYPOINT_KEY`, if a restore is to start it anew."""
        ...

    async def program(self, spec: SandboxSpec, secrets: Mapping[str, str]) -> EntrypointProgram | None:
        """Return the entrypoint of a spec's image; None if it is the first process, which the driver has started.

        Raises:
            SandboxStartError: The image has none.
        """
        ...

    async def first_state(self, name: str) -> EntrypointState:
        """Return how an entrypoint fares that is the first process, also of a sandbox that has ended with it."""
        ...
