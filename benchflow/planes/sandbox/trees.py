"""Whole trees of files, copied with everything an overlay reads from them, and removed.

The ways of the standard library lose extended attributes of the system, hard links, device nodes or holes.
"""

# Strings, because a tree has very many paths.
# ruff: noqa: PTH101, PTH102, PTH106, PTH115, PTH211

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
from pathlib import Path

FICLONE = 0x40049409
"""The call that makes a file share the blocks of another."""

_WHOLE = 1 << 30


def copy(source: Path, target: Path, *, reflink: bool) -> None:
    """Make the directory `target` what `source` is: owners, modes, times, links, nodes, extended attributes, ACLs.

    reflink: files must share their blocks until written; without it they do where the file system lets them. Nothing
    may change `source` meanwhile. A crash or an error leaves part of `target`.
    """
    linked: dict[tuple[int, int], str] = {}
    found = []
    waiting = [(str(source), str(target), os.lstat(source))]
    while waiting:
        old, new, status = waiting.pop()
        os.mkdir(new, 0o700)
        found.append((old, new, status))
        with os.scandir(old) as entries:
            for entry in entries:
                own, copied = entry.stat(follow_symlinks=False), f"{new}/{entry.name}"
                if stat.S_ISDIR(own.st_mode):
                    waiting.append((entry.path, copied, own))
                elif (own.st_dev, own.st_ino) in linked:
                    os.link(linked[own.st_dev, own.st_ino], copied, follow_symlinks=False)
                else:
                    _copy_entry(entry.path, copied, own, reflink)
                    if own.st_nlink > 1:
                        linked[own.st_dev, own.st_ino] = copied
    # Last, since every entry changes its directory's time, and a mode may forbid to enter.
    for old, new, status in reversed(found):
        _dress(old, new, status)


def remove(path: Path) -> None:
    """Remove a tree, however deep, also while another process removes it. Missing is success."""
    try:
        return os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    done = subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(errno.EBUSY, done.stderr.strip() or "cannot be removed", str(path))


def _copy_entry(old: str, new: str, status: os.stat_result, reflink: bool) -> None:
    if stat.S_ISREG(status.st_mode):
        _copy_data(old, new, status.st_size, reflink)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(old), new)
    else:
        os.mknod(new, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    _dress(old, new, status)


def _copy_data(old: str, new: str, size: int, reflink: bool) -> None:
    reader = os.open(old, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if reflink:
                fcntl.ioctl(writer, FICLONE, reader)
            else:
                _copy_ranges(reader, writer, size)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_ranges(reader: int, writer: int, size: int) -> None:
    """Copy what a file holds, leaving its holes: an image of a disk may be far larger than the disk."""
    end = 0
    while end < size:
        try:
            start = os.lseek(reader, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(reader, start, os.SEEK_HOLE)
        os.lseek(writer, start, os.SEEK_SET)
        while start < end:
            if not (copied := _copy_range(reader, writer, start, min(end - start, _WHOLE))):
                raise OSError(errno.EIO, "it is being made shorter while it is copied")
            start += copied
    os.ftruncate(writer, size)


def _copy_range(reader: int, writer: int, start: int, length: int) -> int:
    try:
        # Shares blocks where it can.
        return os.copy_file_range(reader, writer, length, offset_src=start)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        return os.sendfile(writer, reader, start, length)


def _dress(old: str, new: str, status: os.stat_result) -> None:
    """Owner first, which clears set-user-id bits and capabilities; times last, which all else changes."""
    os.chown(new, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(new, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(old, follow_symlinks=False):
        os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=False), follow_symlinks=False)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
