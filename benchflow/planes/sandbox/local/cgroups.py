"""The control groups of sandboxes: who is in one, what it may use, and to stop, freeze and end all of it.

The names are the truth: whatever runs for a sandbox is in its group, from before its first process on, so that any
process can find and end it. Freezing and killing need only an empty version 2 hierarchy, which every kernel can
mount; limits are set where the kernel's controllers are, in version 2 or in the older hierarchies.
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
from benchflow.planes.sandbox.local.limits import MEANING, Limits, apply, settings_v1, settings_v2
from benchflow.planes.sandbox.local.store.mounts import Mount, mounts
from benchflow.planes.sandbox.memory import V1_FILES, V2_FILES, parse_memory
from benchflow.planes.sandbox.timeouts import AwakeDeadline

TOP = "benchflow"
"""The directory of all groups in each hierarchy."""

END_SEC = 60.0
"""How long the kernel may take to end what is killed: a process that waits for the disk does so first."""

_ATTEMPTS = 10
"""How often a directory is made again that another process, which saw it empty, removed."""


@dataclass(frozen=True)
class Hierarchies:
    """Where control groups are on this host. v1: by controller; several may share one mount."""

    v2: Path | None
    v1: dict[str, Path]


def hierarchies(table: list[Mount], own: Path) -> Hierarchies:
    """Those of a mount table that can be written to. own: where we mount version 2 ourselves."""
    v2 = [Path(mount.point) for mount in table if mount.kind == "cgroup2" and mount.writable]
    others = [path for path in v2 if path != own]
    v1: dict[str, Path] = {}
    for mount in table:
        if mount.kind == "cgroup" and mount.writable:
            for controller in MEANING.keys() & mount.options:
                v1.setdefault(controller, Path(mount.point))
    return Hierarchies(next(iter(others or v2), None), v1)


class Cgroups:
    """The groups of one state directory's sandboxes.

    home: a directory of the engine's own, where version 2 is mounted if it is nowhere else. group: the name under
    which this state directory's sandboxes lie. Raises `SandboxUnavailableError` where no group can be made.
    """

    def __init__(self, home: Path, group: str) -> None:
        self.group = group
        self._own = home / "cgroup"
        self._found: Hierarchies | None = None

    def sandbox(self, name: str) -> Cgroup:
        """The group of a sandbox, which need not exist."""
        return Cgroup(self, name)

    def names(self) -> list[str]:
        """The sandboxes that have a group, or what is left of one."""
        names = set()
        for directory in self.directories():
            names.update(_children(directory))
        return sorted(names)

    def sweep(self) -> None:
        """Remove what the sandboxes shared, once none of them is left, and the mount, if it is ours."""
        for directory in self.directories():
            if _rmdir(directory):
                _rmdir(directory.parent)
        if os.path.ismount(self._own) and not (self._own / TOP / self.group).exists():
            if subprocess.run(["umount", str(self._own)], capture_output=True).returncode == 0:
                self._own.rmdir()
            self._found = None

    def directories(self) -> list[Path]:
        """This group's directory in each hierarchy, whether it exists or not."""
        found = self.found
        mounted = dict.fromkeys([*([found.v2] if found.v2 else []), *found.v1.values()])
        return [mount / TOP / self.group for mount in mounted]

    @property
    def found(self) -> Hierarchies:
        if self._found is None or self._found.v2 is None or not (self._found.v2 / "cgroup.procs").exists():
            self._found = hierarchies(mounts(), self._own.absolute())
        return self._found

    @property
    def v2(self) -> Path:
        """This group's directory in version 2, or where it would be."""
        return (self.found.v2 or self._own) / TOP / self.group

    def v1(self, controller: str) -> Path | None:
        """This group's directory in a controller's older hierarchy, where it has one."""
        mount = self.found.v1.get(controller)
        return mount / TOP / self.group if mount else None

    def enable(self, controller: str) -> bool:
        """Let a version 2 controller work in this group's sandboxes. False where it is not there or not for us."""
        for path in reversed([self.v2, *self.v2.parents[:2]]):
            if controller not in _read(path / "cgroup.controllers").split():
                return False
            try:
                _write(path / "cgroup.subtree_control", f"+{controller}")
            except SandboxError:
                # A part of the tree whose top holds processes, as in a container, gives its controllers to nobody.
                return False
        return True

    def mount(self) -> None:
        """See that there is a version 2 hierarchy."""
        if self.found.v2 is not None:
            return
        self._own.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "cgroup2", "-o", "nosuid,nodev,noexec", "cgroup2", str(self._own)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # Another process may have mounted it in between, which the kernel then refuses to do twice.
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
    """The group of one sandbox. A leaf is a part of it, e.g. one command, that can be ended by itself."""

    def __init__(self, groups: Cgroups, name: str) -> None:
        if not name or "/" in name or name.startswith(".") or "\n" in name:
            raise SandboxError(f"`{name}` cannot be the name of a control group")
        self.name = name
        self._groups = groups
        self._v2 = groups.v2 / name
        # Several controllers may share one older hierarchy.
        older = [groups.v1(controller) for controller in MEANING]
        self._v1 = list(dict.fromkeys(group / name for group in older if group))

    def make(self, limits: Limits) -> tuple[str, ...]:
        """Make it with these limits, or set them anew; says which cannot be enforced here, and why."""
        self._groups.mount()
        _mkdir(self._v2)
        warnings = []
        newer, older = settings_v2(limits), settings_v1(limits)
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
        """Make the leaf; a process with one thread is in it once it has written `0` to each of these, in order."""
        directory = self._leaf(leaf)
        _mkdir(directory)
        # `tasks` moves the writing thread alone, for which the kernel need not stop the forks of all processes.
        older = [path / "tasks" for path in self._v1 if path.is_dir()]
        return [str(directory / "cgroup.procs"), *map(str, older)]

    def pids(self, leaf: str | None = None) -> set[int]:
        """The processes in a leaf, or in all of it. Missing is empty."""
        found: set[int] = set()
        for directory in [self._leaf(leaf)] if leaf else _tree(self._v2):
            found.update(_pids(directory))
        return found

    def leaves(self) -> list[str]:
        return sorted(_children(self._v2))

    def drop_leaf(self, leaf: str) -> None:
        """Remove a leaf that nothing runs in. One that is still in use stays."""
        _rmdir(self._leaf(leaf))

    def memory_use(self) -> MemoryUse | None:
        """Return its memory counters; None where it has none, or is gone."""
        for directory in [self._v2, *self._v1]:
            use = parse_memory({name: _read(directory / name) for name in (*V2_FILES, *V1_FILES)})
            if use is not None:
                return use
        return None

    def freeze(self, timeout: float = END_SEC) -> None:
        """Stop all its processes where they are. Raises `SandboxError`, with all of them going on, after `timeout`."""
        try:
            _write(self._v2 / "cgroup.freeze", "1")
            _wait(self._v2, "frozen", "1", timeout)
        except OSError as error:
            self.thaw()
            raise SandboxError(f"sandbox {self.name} cannot be frozen: {error}") from error

    def thaw(self) -> None:
        """Let them go on. Not frozen, or missing, is success."""
        # A leaf is frozen by itself while it is being killed; whoever did that may have died.
        for directory in _tree(self._v2):
            _write(directory / "cgroup.freeze", "0")

    @property
    def frozen(self) -> bool:
        """Whether a freeze was asked for and not taken back: what joins now would hang."""
        return any(_read(directory / "cgroup.freeze").strip() == "1" for directory in _tree(self._v2))

    def kill(self, leaf: str | None = None) -> None:
        """End all processes, also frozen ones and those born meanwhile. Does not wait. Missing is success."""
        directory = self._leaf(leaf) if leaf else self._v2
        if (directory / "cgroup.kill").exists():
            _write(directory / "cgroup.kill", "1")
            # The kernel sends it to the first thread of each process alone, not to the process. One whose first thread
            # has ended does not hear of it, and its other threads go on (Linux 5.14 to 6.18).
            if not any(has_ended_first(pid) for path in _tree(directory) for pid in _pids(path)):
                return
        if directory.exists():
            kill_frozen(directory)

    def wait_empty(self, timeout: float = END_SEC, leaf: str | None = None) -> None:
        """Return when nothing runs in it any more. Raises `SandboxError` after `timeout` seconds. Missing is empty."""
        try:
            _wait(self._leaf(leaf) if leaf else self._v2, "populated", "0", timeout)
        except FileNotFoundError:
            return
        except OSError as error:
            left = " ".join(map(str, sorted(self.pids(leaf)))) or "none to be seen"
            raise SandboxError(f"processes of sandbox {self.name} do not end (pids: {left}): {error}") from error

    def remove(self) -> None:
        """Thaw it, kill what runs in it, and remove it, everywhere. Missing is success."""
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
            # Something joined in between, or the kernel has not yet taken away what ended.
            time.sleep(0.005)

    def _leaf(self, leaf: str) -> Path:
        if not leaf or "/" in leaf or leaf.startswith(".") or "\n" in leaf:
            raise SandboxError(f"`{leaf}` cannot be the name of a part of a control group")
        return self._v2 / leaf

    def _kill_older(self) -> None:
        """What is only in an older hierarchy: killed while it joined one after the other, or left there by hand."""
        for directory in self._v1:
            for pid in _pids(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def kill_frozen(directory: Path) -> None:
    """End all processes of a version 2 group without `cgroup.kill`: none may be born meanwhile."""
    _write(directory / "cgroup.freeze", "1")
    try:
        with contextlib.suppress(FileNotFoundError, TimeoutError):
            _wait(directory, "frozen", "1", 5.0)
        for path in _tree(directory):
            for pid in _pids(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        _write(directory / "cgroup.freeze", "0")


def _mkdir(directory: Path) -> None:
    for _ in range(_ATTEMPTS):
        try:
            return directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            # A sweep may take away a parent just made: it is empty. While it goes, there is no such device.
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
    """Remove one directory; whether it is gone. In use, with processes or parts, it stays."""
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
    for path in reversed(list(_tree(directory))):
        _rmdir(path)
    return not directory.exists()


def _tree(directory: Path) -> Iterator[Path]:
    """A group and all below it, from the top. Missing is none."""
    if directory.is_dir():
        yield directory
        for name in _children(directory):
            yield from _tree(directory / name)


def _children(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _pids(directory: Path) -> list[int]:
    """The processes of one group. Those outside our own pid namespace show as 0 and are left out."""
    return [pid for pid in map(int, _read(directory / "cgroup.procs").split()) if pid]


def _read(file: Path) -> str:
    """The text of a group's file; nothing when the group is gone, also while it is read."""
    try:
        return file.read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
            return ""
        raise SandboxError(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, text: str) -> None:
    """Write to a group's file unless the group is gone. Never makes the file."""
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
"""Seconds after which a wait looks whether somebody has removed the group that it waits for."""


def _wait(directory: Path, key: str, value: str, timeout: float) -> None:
    """Until a line of `cgroup.events` says so. Raises `TimeoutError`, or `FileNotFoundError` for a group gone."""
    giving_up = AwakeDeadline(timeout)
    fd = os.open(directory / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while f"{key} {value}" not in _events(fd):
            if giving_up.is_over():
                raise TimeoutError(f"not `{key} {value}` within {timeout:g} seconds")
            # The kernel wakes every reader when a line changes after it was read; not when the group is removed.
            poll.poll(min(timeout, _REMOVAL_SLICE) * 1000)
    finally:
        os.close(fd)


def _events(fd: int) -> list[str]:
    try:
        return os.pread(fd, 4096, 0).decode().splitlines()
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise FileNotFoundError(errno.ENOENT, "the group is gone") from None
        raise
