"""System calls that Python has no function for, and their constants.

Errors are `OSError` with the name of the call in their text.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_DETACH = 2

_PR_CAPBSET_DROP = 24
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_INTO_CGROUP = 0x200000000
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_CLONE3 = 435
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1 | os.O_CLOEXEC
_MOVE_EMPTY_PATH = 4
_CAP_VERSION_3 = 0x20080522
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2

CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
    "AUDIT_WRITE": 29,
}
"""Capabilities that root of a sandbox has, with the kernel's numbers: the same set as in our containers."""

_libc = ctypes.CDLL(None, use_errno=True)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def _check(result: int, call: str) -> None:
    """Raise `OSError` with the name of the call if its result is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process to new namespaces. A new pid namespace holds only children born afterwards."""
    _check(_libc.unshare(flags), "unshare")


def setns(pidfd: int, flags: int) -> None:
    """Enter namespaces of a process. Its pid namespace is entered only by children born afterwards."""
    _check(_libc.setns(pidfd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount, bind or remount, as the system call. `kind` is the type of filesystem."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            os.fsencode(options) if options else None,
        ),
        f"mount {kind or source} on {target}",
    )


def open_tree(path: str) -> int:
    """Return a handle on a copy of the mounts at a path. It can be attached where the path is out of reach."""
    tree = int(
        _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(_OPEN_TREE_CLONE | _AT_RECURSIVE))
    )
    _check(tree, f"open_tree {path}")
    return tree


def attach(tree: int, path: str) -> None:
    """Mount a tree of `open_tree` at a path."""
    moved = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(path), ctypes.c_uint(_MOVE_EMPTY_PATH))
    _check(moved, f"move_mount to {path}")


def change_root() -> None:
    """Make the working directory, which must be a mount, the root, and detach the old root."""
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def keep_capabilities(kept: Iterable[int]) -> None:
    """Drop all capabilities but these, for this process and all that it executes."""
    wanted = set(kept)
    # The kernel refuses numbers beyond its last capability.
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for number in range(last + 1):
        if number not in wanted:
            _prctl(_PR_CAPBSET_DROP, number)
    data = (_CapData * 2)()
    for number in wanted:
        half = data[number // 32]
        half.effective |= 1 << (number % 32)
        half.permitted |= 1 << (number % 32)
    header = _CapHeader(_CAP_VERSION_3, 0)
    _check(_libc.capset(ctypes.byref(header), data), "capset")


def forbid_new_privileges() -> None:
    """Forbid this process and its descendants to gain privileges from set-user-id programs."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Make this process and its forks untraceable for unprivileged processes, until they execute a program."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, in case that pid 1 does not reap."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Free the disk space of a part of a file, which then reads as zeros."""
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    _check(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)), "fallocate")


def syscall(name: str, number: int, *arguments: object) -> int:
    """Make a system call that the C library has no function for, by its number on this machine; return its result."""
    result = int(_libc.syscall(number, *arguments))
    _check(result, name)
    return result


def _prctl(option: int, value: int) -> None:
    """Call prctl(2) with one value."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


class _CloneArguments(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("pidfd", ctypes.c_uint64),
        ("child_tid", ctypes.c_uint64),
        ("parent_tid", ctypes.c_uint64),
        ("exit_signal", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("stack_size", ctypes.c_uint64),
        ("tls", ctypes.c_uint64),
        ("set_tid", ctypes.c_uint64),
        ("set_tid_size", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
    ]


def fork_into(cgroup: int) -> int:
    """Fork a child that is born in a version 2 cgroup. Returns its pid in the parent and 0 in the child, as `os.fork`.

    Moving a process after its birth waits, on an idle machine, for every processor to pass through the scheduler (10 ms
    and more); being born there costs nothing. The child must soon execute a program or exit: it was forked without the
    interpreter's knowledge. On a kernel that can't (before 5.7), the child is moved before it continues.

    Args:
        cgroup: Open directory of the cgroup.
    """
    arguments = _CloneArguments(flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=cgroup)
    pid = int(_libc.syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    if pid >= 0:
        return pid
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.E2BIG):
        _check(pid, "clone3")
    holding, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        if not os.read(holding, 1):
            # The parent was killed before it moved this process, which nothing would end outside of its cgroup.
            os._exit(1)
        os.close(holding)
        return 0
    procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=cgroup)
    os.write(procs, str(pid).encode())
    os.write(release, b".")
    for fd in (procs, holding, release):
        os.close(fd)
    return pid
