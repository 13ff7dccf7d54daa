"""The cgroups of sandboxes: which processes are in one, their limits, and killing and freezing all of them.

The names are the truth: every process of a sandbox is in its cgroup from its birth, so any process of the engine can
find and end it. Freezing and killing need only an empty version 2 hierarchy, which every kernel can mount; limits are
set where the kernel's controllers are, in version 2 or in the version 1 hierarchies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.memory_use import MemoryUse
from benchflow.errors import SandboxError, SandboxUnavailableError
from benchflow.planes.sandbox.host_table import has_ended_first
from benchflow.planes.sandbox.local.cgroup_limits import (
    MEANING,
    SandboxLimits,
    apply,
    make_settings_v1,
    make_settings_v2,
)
from benchflow.planes.sandbox.local.store.mount_table import MountEntry, read_mounts
from benchflow.planes.sandbox.sandbox_memory import V1_FILES, V2_FILES, parse_memory
from benchflow.planes.sandbox.timeouts import AwakeDeadline

TOP = "benchflow"
"""Name of the directory of all cgroups of the engine in each hierarchy."""

END_SEC = 60.0
"""Seconds in which killed processes must end: one that waits for the disk ends only after that."""

_ATTEMPTS = 10
"""Tries to create a directory that other processes, which see it empty, remove again."""


@dataclass(frozen=True)
class Hierarchies:
    """The writable cgroup hierarchies of this host."""

    v2: Path | None
    """Mount point of version 2; None if there is none."""
    v1: dict[str, Path]
    """Mount points of version 1, by controller. Several controllers may share one."""


def find_hierarchies(table: list[MountEntry], own: Path) -> Hierarchies:
    """Return the writable hierarchies of a mount table. Of version 2 mounts, `own`, the engine's, is chosen last."""
    v2 = [Path(mount.point) for mount in table if mount.kind == "cgroup2" and mount.writable]
    others = [path for path in v2 if path != own]
    v1: dict[str, Path] = {}
    for mount in table:
        if mount.kind == "cgroup" and mount.writable:
            for controller in MEANING.keys() & mount.options:
                v1.setdefault(controller, Path(mount.point))
    return Hierarchies(next(iter(others or v2), None), v1)


class Cgroups:
    """The cgroups of one state directory's sandboxes. Raises `SandboxUnavailableError` where none can be created.

    Args:
        home: Directory of the engine, where version 2 is mounted if it is mounted nowhere else.
        group: Name of the directory below which this state directory's sandboxes have their cgroups.
    """

    def __init__(self, home: Path, group: str) -> None:
        """Make it."""
        self.group = group
        self._own = home / "cgroup"
        self._found: Hierarchies | None = None

    def sandbox(self, name: str) -> Cgroup:
        """Return the cgroup of a sandbox, which need not exist."""
        return Cgroup(self, name)

    def names(self) -> list[str]:
        """Return the names of the sandboxes that have a cgroup, or leftovers of one."""
        names = set()
        for directory in self.directories():
            names.update(_list_children(directory))
        return sorted(names)

    def sweep(self) -> None:
        """Remove the parent directories once no sandbox is left, and unmount the hierarchy if it is ours."""
        for directory in self.directories():
            if _rmdir(directory):
                _rmdir(directory.parent)
        if os.path.ismount(self._own) and not (self._own / TOP / self.group).exists():
            if subprocess.run(["umount", str(self._own)], capture_output=True).returncode == 0:
                self._own.rmdir()
            self._found = None

    def directories(self) -> list[Path]:
        """Return this state directory's parent directory in each hierarchy, whether it exists or not."""
        found = self.found
        mounted = dict.fromkeys([*([found.v2] if found.v2 else []), *found.v1.values()])
        return [mount / TOP / self.group for mount in mounted]

    @property
    def found(self) -> Hierarchies:
        """Return the hierarchies of this host, looked up again if version 2 is no longer mounted."""
        if self._found is None or self._found.v2 is None or not (self._found.v2 / "cgroup.procs").exists():
            self._found = find_hierarchies(read_mounts(), self._own.absolute())
        return self._found

    @property
    def v2(self) -> Path:
        """Return the parent directory in version 2, whether it exists or not."""
        return (self.found.v2 or self._own) / TOP / self.group

    def v1(self, controller: str) -> Path | None:
        """Return the parent directory in a controller's version 1 hierarchy; None if there is none."""
        mount = self.found.v1.get(controller)
        return mount / TOP / self.group if mount else None

    def enable(self, controller: str) -> bool:
        """Enable a version 2 controller for the sandboxes. Return False if it is missing or not delegated to us."""
        for path in reversed([self.v2, *self.v2.parents[:2]]):
            if controller not in _read(path / "cgroup.controllers").split():
                return False
            try:
                _write(path / "cgroup.subtree_control", f"+{controller}")
            except SandboxError:
                # A cgroup with processes of its own, like a container's root, can't enable controllers for children.
                return False
        return True

    def mount(self) -> None:
        """Mount a version 2 hierarchy unless there is one. Raise `SandboxUnavailableError` if that fails."""
        if self.found.v2 is not None:
            return
        self._own.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "cgroup2", "-o", "nosuid,nodev,noexec", "cgroup2", str(self._own)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Another process may have mounted it meanwhile; then the kernel refuses a second mount.
        self._found = None
        if done.returncode and self.found.v2 is None:
            raise SandboxUnavailableError(
                "there are no control groups (version 2) that can be written to, and none can be mounted",
                file=str(self._own),
                remedy="run as root; in a container, start that one privileged and with the host's cgroup namespace; "
                "or use the Docker sandbox (--sandbox docker)",
                log_tail=done.stdout,
            )


class Cgroup:
    """The cgroup of one sandbox. A *leaf* is a child of it, usually one command, that can be killed by itself.

    Raises `SandboxError` for a sandbox whose name can't be that of a directory.
    """

    def __init__(self, groups: Cgroups, name: str) -> None:
        """Make it. Nothing is created on disk."""
        if not name or "/" in name or name.startswith(".") or "\n" in name:
            raise SandboxError(f"`{name}` cannot be the name of a control group")
        self.name = name
        self._groups = groups
        self._v2 = groups.v2 / name
        # Several controllers may share one older hierarchy.
        older = [groups.v1(controller) for controller in MEANING]
        self._v1 = list(dict.fromkeys(group / name for group in older if group))

    def make(self, limits: SandboxLimits) -> tuple[str, ...]:
        """Create the cgroup, or find it, and set its limits. Return a warning for each that can't be enforced."""
        self._groups.mount()
        _mkdir(self._v2)
        warnings = []
        newer, older = make_settings_v2(limits), make_settings_v1(limits)
        for controller in newer:
            if controller in _read(self._v2 / "cgroup.controllers").split() or self._groups.enable(controller):
                problem = apply(self._v2, newer[controller])
            elif (group := self._groups.v1(controller)) is not None:
                _mkdir(group / self.name)
                problem = apply(group / self.name, older[controller])
            elif controller == "cpu" and limits.cpus is None:
                continue
            else:
                problem = "this host has no control group for it that can be used here"
            if problem:
                warnings.append(f"the {MEANING[controller]} limit is not enforced: {problem}")
        return tuple(warnings)

    def join_files(self, leaf: str) -> list[str]:
        """Create a leaf, and return the files through which a process joins it.

        A process with one thread is in the leaf once it has written `0` to each of them, in order.
        """
        directory = self._leaf(leaf)
        _mkdir(directory)
        # `tasks` moves only the writing thread; for `cgroup.procs` the kernel would stop the forks of all processes.
        older = [path / "tasks" for path in self._v1 if path.is_dir()]
        return [str(directory / "cgroup.procs"), *map(str, older)]

    def pids(self, leaf: str | None = None) -> set[int]:
        """Return the pids in a leaf, or in the whole cgroup. Missing is empty."""
        found: set[int] = set()
        for directory in [self._leaf(leaf)] if leaf else _walk(self._v2):
            found.update(_read_pids(directory))
        return found

    def leaves(self) -> list[str]:
        """Return the names of all leaves, sorted."""
        return sorted(_list_children(self._v2))

    def drop_leaf(self, leaf: str) -> None:
        """Remove a leaf, unless processes are in it."""
        _rmdir(self._leaf(leaf))

    def memory_use(self) -> MemoryUse | None:
        """Return its memory counters; None if it has none, or is gone."""
        for directory in [self._v2, *self._v1]:
            use = parse_memory({name: _read(directory / name) for name in (*V2_FILES, *V1_FILES)})
            if use is not None:
                return use
        return None

    def freeze(self, timeout: float = END_SEC) -> None:
        """Freeze all processes. Raise `SandboxError`, with all of them thawed, after `timeout` seconds."""
        try:
            _write(self._v2 / "cgroup.freeze", "1")
            _wait(self._v2, "frozen", "1", timeout)
        except OSError as error:
            self.thaw()
            raise SandboxError(f"sandbox {self.name} cannot be frozen: {error}") from error

    def thaw(self) -> None:
        """Resume all processes. Not frozen, or missing, is success."""
        # `kill_frozen` freezes a leaf by itself, and its process may have died before the thaw.
        for directory in _walk(self._v2):
            _write(directory / "cgroup.freeze", "0")

    @property
    def frozen(self) -> bool:
        """Return whether it or a leaf is frozen or freezing. A process that joined it now would hang."""
        return any(_read(directory / "cgroup.freeze").strip() == "1" for directory in _walk(self._v2))

    def kill(self, leaf: str | None = None) -> None:
        """Kill all processes of a leaf or of all, also frozen and newborn ones, without waiting. Missing is success."""
        directory = self._leaf(leaf) if leaf else self._v2
        if (directory / "cgroup.kill").exists():
            _write(directory / "cgroup.kill", "1")
            # The kernel sends the signal to the first thread of each process alone, not to the process. One whose first
            # thread has ended does not receive it, and its other threads run on (Linux 5.14 to 6.18).
            if not any(has_ended_first(pid) for path in _walk(directory) for pid in _read_pids(path)):
                return
        if directory.exists():
            kill_frozen(directory)

    def wait_empty(self, timeout: float = END_SEC, leaf: str | None = None) -> None:
        """Wait until no process is in it, or in a leaf. Raise `SandboxError` after `timeout` seconds."""
        try:
            _wait(self._leaf(leaf) if leaf else self._v2, "populated", "0", timeout)
        except FileNotFoundError:
            return
        except OSError as error:
            left = " ".join(map(str, sorted(self.pids(leaf)))) or "none to be seen"
            raise SandboxError(f"processes of sandbox {self.name} do not end (pids: {left}): {error}") from error

    def remove(self) -> None:
        """Kill all processes, and remove the cgroup in all hierarchies. Missing is success."""
        giving_up = AwakeDeadline(END_SEC)
        while True:
            self.thaw()
            self.kill()
            self._kill_older()
            self.wait_empty()
            left = [directory for directory in [self._v2, *self._v1] if not _remove_tree(directory)]
            if not left:
                return
            if giving_up.is_over():
                raise SandboxError(f"control group {left[0]} stays in use")
            # A process joined in between, or the kernel has not yet removed one that ended.
            time.sleep(0.005)

    def _leaf(self, leaf: str) -> Path:
        if not leaf or "/" in leaf or leaf.startswith(".") or "\n" in leaf:
            raise SandboxError(f"`{leaf}` cannot be the name of a part of a control group")
        return self._v2 / leaf

    def _kill_older(self) -> None:
        """Kill processes that are only in a version 1 cgroup.

        They were interrupted while joining one hierarchy after the other, or were put there by hand.
        """
        for directory in self._v1:
            for pid in _read_pids(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def kill_frozen(directory: Path) -> None:
    """Kill all processes of a version 2 cgroup without `cgroup.kill`. It is frozen, so that none can fork meanwhile."""
    _write(directory / "cgroup.freeze", "1")
    try:
        with contextlib.suppress(FileNotFoundError, TimeoutError):
            _wait(directory, "frozen", "1", 5.0)
        for path in _walk(directory):
            for pid in _read_pids(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        _write(directory / "cgroup.freeze", "0")


def _mkdir(directory: Path) -> None:
    for _ in range(_ATTEMPTS):
        try:
            return directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            # A sweep may remove a parent just created, which is empty. During the removal the errno is ENODEV.
            if error.errno in (errno.ENOENT, errno.ENODEV):
                continue
            raise SandboxUnavailableError(
                f"the control group cannot be made: {error.strerror}",
                file=str(directory),
                remedy="run as root; in a container, start that one privileged; or use the Docker sandbox (--sandbox "
                "docker)",
            ) from error
    raise SandboxError(f"control group {directory} is removed as fast as it is made")


def _rmdir(directory: Path) -> bool:
    """Remove one directory, and return whether it is gone. With processes or children in it, it stays."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise SandboxError(f"control group {directory} cannot be removed: {error.strerror}") from error
    return True


def _remove_tree(directory: Path) -> bool:
    for path in reversed(list(_walk(directory))):
        _rmdir(path)
    return not directory.exists()


def _walk(directory: Path) -> Iterator[Path]:
    """Yield a cgroup and all below it, parents first. Missing is none."""
    if directory.is_dir():
        yield directory
        for name in _list_children(directory):
            yield from _walk(directory / name)


def _list_children(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_pids(directory: Path) -> list[int]:
    """Return the pids of one cgroup, without processes outside of our pid namespace, which show as 0."""
    return [pid for pid in map(int, _read(directory / "cgroup.procs").split()) if pid]


def _read(file: Path) -> str:
    """Return the text of a cgroup's file; empty if the cgroup is gone, even while it is read."""
    try:
        return file.read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
            return ""
        raise SandboxError(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, text: str) -> None:
    """Write to a cgroup's file, unless the cgroup is gone. The file is never created."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise SandboxError(f"{file} cannot be written: {error.strerror}") from error


_REMOVAL_SLICE = 0.1
"""Seconds after which a wait checks whether the cgroup was removed: the kernel sends no event for that."""


def _wait(directory: Path, key: str, value: str, timeout: float) -> None:
    """Wait for a value in `cgroup.events`. Raise `TimeoutError`, or `FileNotFoundError` if the cgroup is gone."""
    giving_up = AwakeDeadline(timeout)
    fd = os.open(directory / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while f"{key} {value}" not in _read_events(fd):
            if giving_up.is_over():
                raise TimeoutError(f"not `{key} {value}` within {timeout:g} seconds")
            # The kernel wakes every reader when a line changes after it was read; not when the cgroup is removed.
            poll.poll(min(timeout, _REMOVAL_SLICE) * 1000)
    finally:
        os.close(fd)


def _read_events(fd: int) -> list[str]:
    """Return the lines of an open `cgroup.events`. Raise `FileNotFoundError` if the cgroup is gone."""
    try:
        return os.pread(fd, 4096, 0).decode().splitlines()
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise FileNotFoundError(errno.ENOENT, "the group is gone") from None
        raise
