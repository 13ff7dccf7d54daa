"""The Sandbox plane's contract: the specification, reference and methods of an isolated place to run commands.

A provider is an object with the methods of `SandboxProvider`; it is found by entry point (`benchflow.sandboxes`) under
its name. Every call may come from a new process: a provider holds nothing in memory that it could not find again from a
`SandboxRef`, because workers die.
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

NetworkMode = Literal["public", "no-network", "allowlist"]
"""Network of a sandbox: the internet, loopback only, or only listed hosts."""

Lockdown = Literal["none", "hardened", "clean_room"]
"""Degree to which a verifier can be isolated from the files and processes that an agent has left.

`none`: not at all. `hardened`: all processes that the agent has left are killed, and files are read, written and
compared with the image's without any program of the sandbox, which the agent may have changed. `clean_room`: besides,
no sandbox reaches another one, so that a verifier can run in one where no agent has ever been.
"""


class Capabilities(Model):
    """The features of a provider's sandboxes, as data.

    A task that asks for more is refused before it starts; an upper limit that is not enforced is a warning.
    """

    provider: str
    """Name of the provider, as `--sandbox` has it."""

    os: tuple[str, ...] = ("linux",)
    """Operating systems that a task may ask for."""

    network_modes: tuple[NetworkMode, ...] = ("public",)
    """Network modes that a task may ask for. See `SandboxSpec.network_mode`."""

    gpus: bool = False
    """Whether sandboxes can have GPUs. Has no effect: a task that asks for GPUs is refused with every provider."""

    users: bool = True
    """Whether commands can run as other users than root."""

    snapshot: bool = False
    """Whether the files of a running sandbox can be captured as an image."""

    fork: bool = False
    """Whether copies of a running sandbox can be started."""

    portable: bool = False
    """Whether snapshots can be packed for other hosts."""

    freeze: bool = False
    """Whether the processes of a sandbox can be stopped for any length of time. If not, a sandbox runs on while its
    rollout waits."""

    cpu_limit: bool = False
    """Whether `SandboxSpec.cpus` is enforced."""

    memory_limit: bool = False
    """Whether `SandboxSpec.memory_mb` is enforced."""

    storage_limit: bool = False
    """Whether `SandboxSpec.storage_mb` is enforced. If not, a rollout's spec leaves it out."""

    dockerfile: bool = False
    """Whether the provider builds Dockerfiles. If not, it takes ready images only."""

    entrypoint: bool = False
    """Whether a sandbox can run its image's ENTRYPOINT and CMD. The engine sets it for a driver with the methods of
    `RunsEntrypoints`, which need not."""

    mounts: bool = False
    """Whether a sandbox can see directories of its host. If not, agents run with journals of their own in the sandbox,
    which are copied to the host."""

    isolation: str = "process"
    """Boundary between a sandbox and its host, in a word for people: `container`, `process` or `none`. Recorded in
    results, and not evaluated."""

    lockdown: Lockdown = "none"
    """Degree to which a verifier can be isolated from the files and processes that an agent has left."""


class Mount(Model):
    """A directory of the host that is mounted in a sandbox.

    It is never part of a snapshot. A fork has the read-only mounts alone, since nothing writable may be shared.
    """

    source: str
    """Absolute path of the directory on the host."""

    target: str
    """Absolute path in the sandbox. It covers the files that the image has there."""

    read_only: bool = True
    """Whether the sandbox cannot write there, not even as root."""


class SandboxSpec(Model):
    """The specification of a sandbox to start."""

    name: str
    """Name, deterministic, so that a second start under it finds the first one's sandbox."""

    image: ImageRef
    """Image that it starts from: one that the provider has built or found, or a snapshot."""

    labels: dict[str, str] = {}
    """Labels of all resources that the sandbox owns, by which the reaper finds them: `benchflow.stack` and others."""

    env: dict[str, str] = {}
    """Variables of all its processes, PID 1 among them where the provider can, over the image's ENV. Never secrets,
    since they are recorded."""

    workdir: str | None = None
    """Absolute path of the workspace, which is made if it is missing. None for the image's working directory or, if
    that is unset, the provider's choice."""

    network_mode: NetworkMode = "public"
    """`public`: it reaches the network, and no other sandbox. `no-network`: it has its loopback alone. `allowlist`: it
    reaches the allowed hosts alone, which no provider offers yet."""

    cpus: float | None = None
    """Upper limit of CPU time, in cores. None for no limit."""

    memory_mb: int | None = None
    """Upper limit of memory, in MiB, without swap. None for no limit."""

    storage_mb: int | None = None
    """Upper limit of disk space, in MiB. None for no limit."""

    hidden: tuple[str, ...] = ()
    """Paths of the host that it must not show, for providers whose sandboxes see the host: the task's directories and
    the job's results."""

    mounts: tuple[Mount, ...] = ()
    """Directories of the host that it sees."""

    entrypoint: Literal["wraps", "none", "first", "below"] = "wraps"
    """Use of the image's ENTRYPOINT and CMD. `wraps`: an ENTRYPOINT runs with an idle command as its arguments, as
    containers are used; `none`: neither runs; `first`: both are the first process, and the sandbox ends with it;
    `below`: both run below an idle first process, and may end.

    A provider whose sandboxes have a first process of its own runs them below that for `first`, too, and wraps none.
    """

    ports: tuple[int, ...] = ()
    """TCP ports of the sandbox that its host must be able to reach, by `expose_port`."""

    image_user: str | None = None
    """USER of the image that the task names, also where `image` is a later state of it. None for root, and for the
    image of a world, whose USER is for its entrypoint."""

    @property
    def named_workdir(self) -> str | None:
        """Return the workspace that the task or its image names; None if neither does."""
        return self.workdir or self.image.workdir

    @property
    def runs_entrypoint(self) -> bool:
        """Return whether the image's ENTRYPOINT and CMD run for their own sake, not around an idle command."""
        return self.entrypoint in ("first", "below")


class SandboxRef(Model):
    """A reference by which any process finds a started sandbox again."""

    provider: str
    """Name of the provider that has started it."""

    name: str
    """Name of the sandbox, as its `SandboxSpec` has it."""

    handle: str
    """The provider's own id of it. It survives a restore; a later sandbox of the same name has another one."""

    host_id: str
    """Id of its host. May be empty for a sandbox that one process starts and removes."""

    queue: str
    """Task queue of its host, on which all activities that touch it run. May be empty like
    `host_id`."""

    generation: int = 0
    """Number of the provision within its rollout, from 0: a sandbox in place of a lost one has the next number."""

    workdir: str
    """Absolute path of the workspace, in which commands start unless they name a directory."""

    warnings: tuple[str, ...] = ()
    """Warnings of the start for the rollout's result, a sentence each: limits that are not enforced and, with the local
    provider, the warnings of the image."""

    episode: str = ""
    """Rollout namespace: prefix of the keys of `exec_once` and of the records of a rollout, where the rollouts of a job
    share one sandbox, one after another. Empty in a sandbox of one rollout, and for the sandbox as a whole."""

    image: str | None = None
    """Identity of the image that it was started from; None for a sandbox that an earlier version started."""

    has_workdir: bool = True
    """Whether the task or its image names the workspace. If neither does, the provider chooses `/app` if it exists,
    else `/root`, and scripts of a task of the split layout start in `/`."""

    image_user: str | None = None
    """USER of the image, as `SandboxSpec.image_user`; commands run as root nevertheless, unless they name a user."""


class SandboxExecResult(Model):
    """The result of a command that has ended."""

    return_code: int
    """Exit status; 128 plus the number of the signal that ended it; 124 if it timed out; 126 if it could not be
    started, with the reason in `stderr`."""

    stdout: str = ""
    """Stdout, as UTF-8 with replacements: at most 10 MiB, its first and last half."""

    stderr: str = ""
    """Stderr, as UTF-8 with replacements: at most 10 MiB, its first and last half."""

    timed_out: bool = False
    """Whether it was killed at its timeout."""

    truncated: bool = False
    """Whether stdout or stderr lacks its middle, in whose place a line says so."""


class ExecChunk(Model):
    """A chunk of a running command's output or, as the last one, its exit status."""

    stream: Literal["stdout", "stderr", "exit"]
    """Stream of the data; `exit` for the last chunk, which has the exit status."""

    data: bytes = b""
    """Output as it came; empty in the last chunk."""

    return_code: int | None = None
    """Exit status, in the last chunk alone."""


@runtime_checkable
class Sandbox(Protocol):
    """A started sandbox.

    Methods raise `SandboxLostError` if it is gone, `SandboxError` otherwise. Paths are absolute and inside the sandbox;
    `user` is a name or uid, root if None; `cwd` is the workspace if None. A command that runs longer than `timeout`
    seconds is killed with all its descendants, and the result has `timed_out`.
    """

    @property
    def ref(self) -> SandboxRef:
        """Return the reference by which any process finds this sandbox again."""
        ...

    async def exec(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> SandboxExecResult:
        """Run a command to its end. A crash of the worker in the middle leaves it running, or not started.

        Args:
            cmd: Argv of the command.
            env: Variables besides those of the sandbox.
            cwd: Directory in which it starts.
            user: User as whom it runs.
            timeout: Seconds after which it is killed; None for no limit.
        """
        ...

    async def control(
        self, script: str, *args: str, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> SandboxExecResult:
        """Run a short shell script of the engine's own, as root, with `args` as `$1` and so on.

        For steps that the engine takes many times in a rollout: a provider makes it cheaper than `exec`. The script may
        be run twice, but not after `sink` was called.

        Args:
            script: Text of the script.
            args: Arguments of the script.
            sink: Callback for the chunks of stdout, which is then empty in the result. An error that it raises ends the
                script.
            timeout: Seconds after which it is killed, and the result has `timed_out`; None for no limit.
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
        """Run a command at most once under an idempotency key, from any number of processes, also after a crash.

        The first call starts it; every other call attaches to the same execution and returns the same result.

        Args:
            key: Idempotency key within the sandbox, or within the rollout namespace of `ref`.
            cmd: Argv of the command.
            env: Variables besides those of the sandbox.
            cwd: Directory in which it starts.
            user: User as whom it runs.
            timeout: Seconds from the start of the execution after which it is killed; None for no limit. Time in which
                no caller waits, or in which the callers are frozen, does not count.
        """
        ...

    async def was_started(self, key: str) -> bool:
        """Return whether `exec_once` has started a command under `key`, in any process."""
        ...

    async def kill_once(self, key: str) -> None:
        """Kill the execution under `key`, with all its descendants. Success if none runs."""
        ...

    def exec_stream(
        self,
        cmd: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[ExecChunk]:
        """Run a command and yield its output as it comes, then one chunk with the exit status.

        Leaving the iteration early kills the command.

        Args:
            cmd: Argv of the command.
            env: Variables besides those of the sandbox.
            cwd: Directory in which it starts.
            user: User as whom it runs.
        """
        ...

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        ...

    async def read_file(self, path: str) -> str:
        """Return the content of a UTF-8 text file.

        Raises:
            FileNotFoundError: There is no such file.
            SandboxError: It is not UTF-8 text.
        """
        ...

    async def write_file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        """Write a file, and make its parent directories.

        Args:
            path: Absolute path of the file.
            content: Content; text is written as UTF-8.
            mode: Permission bits.
            user: Owner of the file and of the directories that are made.
        """
        ...

    async def upload(
        self, source: Path, target: str, *, user: str | int | None = None, exclude: Sequence[str] = ()
    ) -> None:
        """Copy a file, or the *content* of a directory, from the host into the sandbox. Modes are preserved.

        Args:
            source: File or directory of the host.
            target: Path of the file, or of the directory for the content, which is made if it is missing.
            user: Owner of the copies.
            exclude: Shell patterns of relative paths, or of names in them, to leave out.
        """
        ...

    async def download(self, source: str, target: Path, *, exclude: Sequence[str] = ()) -> bool:
        """Copy a file, or the content of a directory, from the sandbox to the host.

        Nothing is ever written outside `target`: links that lead out of it and device nodes are left out.

        Args:
            source: Path in the sandbox.
            target: File or directory of the host.
            exclude: Shell patterns of relative paths, or of names in them, to leave out.

        Returns:
            False if `source` does not exist.
        """
        ...

    async def read_outside(self, path: str) -> bytes | None:
        """Return the content of a file, links followed, without running any program of the sandbox.

        Slower than `read_file`; for a sandbox whose programs an agent may have changed.

        Returns:
            None if there is no such file.
        """
        ...

    async def write_outside(self, path: str, content: bytes, *, mode: int = 0o755) -> None:
        """Write a file, owned by root, without running any program of the sandbox."""
        ...

    async def put_outside(self, files: Mapping[str, tuple[FileState, bytes]]) -> None:
        """Write files and symbolic links without running any program of the sandbox.

        A file or link at one of the paths is replaced. Missing parent directories are made.

        Args:
            files: State and content by absolute path. Mode, owner and, for a link, target are taken from the state.
        """
        ...

    async def changes(self, known: FileChanges | None = None, *, skip: Sequence[str] = ()) -> FileChanges:
        """Return the files that differ from the sandbox's image, without running any program of the sandbox.

        Args:
            known: An earlier list, of this sandbox or of one that it was forked from. The result is then over the same
                image.
            skip: Paths to leave out, with all below them, besides `/proc`, `/sys` and `/dev`.

        Raises:
            SandboxError: The files can't be compared with those of `known`.
        """
        ...

    async def originals(self, base: str, paths: Sequence[str]) -> dict[str, FileState]:
        """Return the files that an image has at these paths; none from a provider whose `changes` lists all files.

        Args:
            base: Id of the image, as `FileChanges.base` has it.
            paths: Absolute paths that lead through no link. Those that the image lacks are not in the result.
        """
        ...

    async def read_original(self, path: str) -> bytes | None:
        """Return the content of a file of the sandbox's image; None if there is no file.

        Args:
            path: Absolute path that leads through no link.
        """
        ...

    async def kill_processes(self, *, keep: Literal["services", "nothing"] = "services") -> int:
        """Kill the processes that the agent has left running, and return their number.

        Args:
            keep: Processes to spare. `services`: PID 1, the processes that `mark_baseline` has recorded, and their
                forks; another program that one of them has started since is spared only if it is started again after
                each of several kills. `nothing`: PID 1 and the main process alone, without which the sandbox ends.
        """
        ...

    async def strangers(self) -> list[RunningProcess]:
        """Return the processes that `kill_processes` would kill, or has given up on."""
        ...

    async def mark_baseline(self, key: str | None = None, *, is_restored: bool = False) -> None:
        """Record the processes that belong to the world, not to the agent: by default, all that run now.

        Args:
            key: Key of an `exec_once`. Its processes are then added to those that were recorded before.
            is_restored: Whether the sandbox started with files that an agent left, whose programs may run by now. Only
                processes of the image's entrypoint are then added to those that were recorded before.
        """
        ...

    async def memory_use(self) -> MemoryUse | None:
        """Return the memory counters, also of a sandbox that has ended, as long as the provider has them; else None.

        A sandbox that is started again, forked or restored counts from zero.
        """
        ...

    async def expose_port(self, port: int) -> tuple[str, int]:
        """Return the address, as (host, port), at which this host reaches a TCP port of the sandbox.

        Raises:
            SandboxError: The sandbox has no network.
        """
        ...

    async def snapshot(self, name: str) -> ImageRef:
        """Capture the files as of one moment, as an image; the sandbox runs on undisturbed.

        A snapshot of this name that exists is returned as it is, since a caller that died may call again. Processes,
        sockets and files in memory (/dev/shm) are not captured.

        Args:
            name: Name of the snapshot: at most 200 letters, digits and `.`, `_`, `-`, `/`.

        Raises:
            UnsupportedFeatureError: The provider's capabilities lack it; so do `restore` and `fork`.
        """
        ...

    async def freeze(self) -> None:
        """Stop all processes of the sandbox until `thaw`, also if the worker dies in between. Success if it is frozen.

        A frozen sandbox can only be attached to and removed. The engine calls `freeze`, `thaw` and `is_frozen` only if
        the provider's capabilities have `freeze`.
        """
        ...

    async def thaw(self) -> None:
        """Resume its processes. Success if it is not frozen."""
        ...

    async def is_frozen(self) -> bool:
        """Return whether it was frozen and not thawed since."""
        ...

    async def restore(self, image: ImageRef) -> None:
        """Restart from an image, with the same name, environment, limits and network, and none of the old processes."""
        ...

    async def fork(self, names: Sequence[str]) -> list[SandboxRef]:
        """Start copies of this sandbox under these names, all with its files as of one moment.

        They have its environment, limits, labels and network mode, and share nothing writable with it. Copies that all
        exist are returned as they are.

        Args:
            names: Names of the copies.
        """
        ...

    async def stop(self) -> None:
        """End the sandbox and remove all that it owns. Success if it is gone."""
        ...
