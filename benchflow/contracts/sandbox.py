"""The Sandbox plane's contract: a place to run commands, and the images it starts from.

A provider is an object with the methods of `SandboxProvider`; it is found by entry point
(`benchflow.sandboxes`) under its name. Every call may come from a new process: a provider keeps nothing in
memory that it could not find again from a `SandboxRef`, because workers die.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from benchflow.contracts.base import Model
from benchflow.contracts.file_changes import FileChanges, FileState
from benchflow.contracts.images import ImageRef
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.task import NetworkMode

Lockdown = Literal["none", "hardened", "clean_room"]
"""How far a verifier can be kept from what an agent has left.

`none`: not at all. `hardened`: all that the agent has left running ends, and files can be read, written and compared
with the image's past every program of the sandbox, which the agent may have changed. `clean_room`: besides, no sandbox
reaches another one, so that a verifier can run in one where no agent has ever been.
"""


class Capabilities(Model):
    """What a provider can do, as data. A task that asks for more is refused before it starts."""

    provider: str
    """Its name."""

    os: tuple[str, ...] = ("linux",)

    network_modes: tuple[NetworkMode, ...] = ("public",)

    gpus: bool = False

    users: bool = True
    """Whether commands can run as other users than root."""

    snapshot: bool = False
    """Whether the files of a running sandbox can be kept as an image."""

    fork: bool = False
    """Whether copies of a running sandbox can be started."""

    portable: bool = False
    """Whether other hosts can have its snapshots."""

    freeze: bool = False
    """Whether its sandboxes can stand still for as long as it takes. One that can't runs on while it waits."""

    cpu_limit: bool = False

    memory_limit: bool = False

    storage_limit: bool = False

    dockerfile: bool = False
    """Whether it builds images."""

    entrypoint: bool = False
    """Whether a sandbox can run what its image runs by itself. A driver need not say so: `RunsEntrypoints` does."""

    mounts: bool = False
    """Whether a sandbox can see directories of this host."""

    isolation: str = "process"
    """What keeps a sandbox apart from this host, in a word for people."""

    lockdown: Lockdown = "none"
    """How far a verifier can be kept from what an agent has left."""


class Mount(Model):
    """A directory of this host that a sandbox sees at `target`, whatever its image has there.

    Never part of a snapshot; a fork has the read-only ones, since nothing writable may be shared.
    """

    source: str
    target: str
    read_only: bool = True


class SandboxSpec(Model):
    """What to start. name: deterministic; starting twice finds the first. env: reaches PID 1, no secrets.

    labels: carried by everything the sandbox owns, for reaping. cpus: cores; memory_mb, storage_mb: MiB.
    hidden: paths of this host that it must not show, for providers whose sandboxes see the host. entrypoint: what is
    done with the image's ENTRYPOINT and CMD: `wraps`, an ENTRYPOINT is given a command that idles, as containers do it;
    `none`, they are left out; `first`, they are the first process, and the sandbox ends with them; `below`, they run
    below an idle one, and may end. A provider whose sandboxes have a first process of its own runs them below that, and
    wraps nothing. ports: TCP ports that this host must be able to reach.
    """

    name: str
    image: ImageRef
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    workdir: str | None = None
    network_mode: NetworkMode = "public"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    hidden: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    entrypoint: Literal["wraps", "none", "first", "below"] = "wraps"
    ports: tuple[int, ...] = ()
    image_user: str | None = None
    """USER of the image that the task names, also where `image` is a later state of it. None for root."""

    @property
    def named_workdir(self) -> str | None:
        """The workspace that the task or its image names, None where neither does."""
        return self.workdir or self.image.workdir

    @property
    def runs_entrypoint(self) -> bool:
        """Whether what the image runs by itself is run for its own sake."""
        return self.entrypoint in ("first", "below")


class SandboxRef(Model):
    """How any process finds a started sandbox again.

    handle: the provider's own id. workdir: the resolved workspace. queue: the task queue of its host.
    warnings: limits that were asked for and cannot be enforced. episode: put before the keys of `exec_once`, where
    several rollouts use one sandbox after another.
    """

    provider: str
    name: str
    handle: str
    host_id: str
    queue: str
    generation: int = 0
    workdir: str
    warnings: tuple[str, ...] = ()
    episode: str = ""
    image: str | None = None
    """Identity of the image that it was started from. None of one that an earlier version started."""
    has_workdir: bool = True
    """Whether the task or its image names the workspace. Where neither does, it is one of the provider's choice, and
    commands of the image itself start in `/`."""
    image_user: str | None = None
    """As the `SandboxSpec` has it. The engine's own commands are root's nevertheless, unless they name a user."""


class SandboxExecResult(Model):
    """A finished command. truncated: output beyond the cap was dropped from the middle of the capture."""

    return_code: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    truncated: bool = False


class ExecChunk(Model):
    """A piece of a running command's output, or, as the last one, its return code."""

    stream: Literal["stdout", "stderr", "exit"]
    data: bytes = b""
    return_code: int | None = None


@runtime_checkable
class Sandbox(Protocol):
    """A started sandbox. Methods raise `SandboxLostError` when it is gone, `SandboxError` otherwise.

    Paths are absolute and inside the sandbox; `user` is a name or uid, root when None. A command that
    outlives `timeout` seconds is killed with everything it started, and the result says `timed_out`.
    """

    @property
    def ref(self) -> SandboxRef: ...

    async def exec(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        """Run a command to its end. Not repeatable: a crash in the middle leaves it running or not run."""
        ...

    async def control(
        self, script: str, *args: str, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> SandboxExecResult:
        """Run a short shell script of the engine's own, as root, with `args` as `$1` and so on.

        For what the engine does many times a rollout: a provider makes it cheaper than `exec`. It may be run twice, but
        not once `sink` was called.

        Args:
            script: What is run.
            args: Its arguments.
            sink: Gets the parts of its standard output as they come; then there is none in the result. What it raises
                ends the script.
            timeout: Seconds after which it is killed. None for no limit.
        """
        ...

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
        """Run a command at most once under `key`, however many processes call this, before or after a crash.

        The first call starts it, every other attaches to the same execution and gets the same result.
        `timeout` counts from the start of the execution, without the time in which no caller waits or all are frozen.
        """
        ...

    async def was_started(self, key: str) -> bool:
        """Whether `exec_once` has started a command under `key`, in any process."""
        ...

    async def kill_once(self, key: str) -> None:
        """Kill the execution under `key` and all it started. None running is success."""
        ...

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        """Run a command and yield its output as it comes, then one chunk with the return code."""
        ...

    async def read_bytes(self, path: str) -> bytes:
        """The bytes of a file. Raises `FileNotFoundError`."""
        ...

    async def read_file(self, path: str) -> str:
        """The content of a text file in UTF-8. Raises `FileNotFoundError`; `SandboxError` for what is no such text."""
        ...

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        """Write a file, making its parent directories."""
        ...

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        """Copy a file or the *content* of a directory to `target`, made if missing. Modes are kept."""
        ...

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        """Copy a file, or the content of a directory, to the host. False when `source` does not exist.

        Nothing is ever written outside `target`: links that leave it and device nodes are left out.
        """
        ...

    async def read_outside(self, path: str) -> bytes | None:
        """The bytes of a file, links followed, None when there is none, with no program of the sandbox taking part.

        Slower than `read_file`; for when nothing inside can be believed.
        """
        ...

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        """Put a file of root's in a place, with no program of the sandbox taking part."""
        ...

    async def put_outside(self, files: Mapping[str, tuple[FileState, bytes]]) -> None:
        """Put files, with their contents, and links in their places, with no program of the sandbox taking part.

        What is no directory there is replaced. The directories that hold them are there, or are made.
        """
        ...

    async def changes(self, known: FileChanges | None = None, *, skip: Sequence[str] = ()) -> FileChanges:
        """Return the files that differ from the sandbox's image, with no program of the sandbox taking part.

        Args:
            known: What differed before, perhaps in a sandbox that this one was forked from: both then are over the same
                image.
            skip: Paths that are left out, with all that is below them, besides `/proc`, `/sys` and `/dev`.

        Raises:
            SandboxError: The files can't be compared with those of `known`.
        """
        ...

    async def originals(self, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return what the image that `FileChanges.base` names has at paths without links; only those that it has.

        Nothing where `changes` lists all files.
        """
        ...

    async def read_original(self, path: str) -> bytes | None:
        """What the sandbox's image has at a path without links; None when that is no file."""
        ...

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        """Kill what the agent left running; the number killed.

        `services` keeps PID 1, what ran when `mark_baseline` was called, and what that has forked: not another program
        that it has started since, unless it starts that again and again.
        """
        ...

    async def strangers(self) -> list[RunningProcess]:
        """Return the processes that `kill_processes` would kill, or has left alone."""
        ...

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        """Remember the processes that belong to the world, not to the agent: all that run now.

        With `key`, those of an `exec_once` belong to it, too, besides what was remembered before. is_restored: the
        sandbox began with files that an agent left, any program of which may have started something by now: besides
        what was remembered before, only what the image's entrypoint has started belongs to the world.
        """
        ...

    async def memory_use(self) -> MemoryUse | None:
        """Return its memory counters, also of one that has ended, as long as they can be had; None where they can't.

        A sandbox that is started again, forked or restored counts from zero.
        """
        ...

    async def expose_port(self, port: int) -> tuple[str, int]:
        """The (host, port) at which this host reaches a TCP port of the sandbox."""
        ...

    async def snapshot(self, name: str) -> ImageRef:
        """Keep the files as they are at one moment, as an image; the sandbox goes on as if nothing had been.

        Of a name that has a snapshot already, that one is returned: a caller that died may ask again. Processes,
        sockets and what lies in memory file systems (/dev/shm) are not kept. Raises `UnsupportedFeatureError` where
        the provider's capabilities say no, here and in `restore` and `fork`.
        """
        ...

    async def freeze(self) -> None:
        """Stop all its processes where they are until `thaw`, whichever processes of the engine die meanwhile.

        Frozen, it can be attached to and removed, and nothing else. Once it is frozen, freezing is success. Called only
        where the provider's capabilities say `freeze`, here and in `thaw` and `is_frozen`.
        """
        ...

    async def thaw(self) -> None:
        """Let its processes go on. One that is not frozen is success."""
        ...

    async def is_frozen(self) -> bool:
        """Tell whether it was frozen and not thawed since."""
        ...

    async def restore(self, image: ImageRef) -> None:
        """Start again from an image: same name, environment, limits and network, none of the old processes."""
        ...

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        """Start sandboxes of these names that begin with the files of this one, all as of one moment.

        They have its environment, limits, labels and network mode, and share nothing that either can change.
        """
        ...

    async def stop(self) -> None:
        """End it and remove all it owns. Stopping something that is gone is success."""
        ...
