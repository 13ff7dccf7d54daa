"""Copying and removing whole directory trees, with all that an overlay reads from them.

The functions of the standard library lose extended attributes of the system, hard links, device nodes or holes.
"""

# Paths are strings, because a tree has very many of them.
# ruff: noqa: PTH101, PTH102, PTH106, PTH115, PTH211

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
from pathlib import Path

FICLONE = 0x40049409
"""Request of `ioctl` that makes a file share the blocks of another."""

_WHOLE = 1 << 30
"""Maximum number of bytes of one copy request."""


def copy_tree(source: Path, target: Path, *, reflink: bool) -> None:
    """Copy a directory tree with owners, modes, times, links, nodes, extended attributes and ACLs.

    A crash or an error leaves a part of `target`.

    Args:
        source: The directory, which must not change meanwhile.
        target: Path of the copy, which does not exist.
        reflink: Whether files must share their blocks until written. If not, they do if the file system can.

    Raises:
        OSError: A file can't be copied.
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
    # Directories last, since each new entry changes their times, and a mode may forbid to enter.
    for old, new, status in reversed(found):
        _copy_attributes(old, new, status)


def remove_tree(path: Path) -> None:
    """Remove a tree of any depth, also while another process removes it. A missing one is success.

    Raises:
        OSError: It can't be removed.
    """
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
    """Copy a file, symbolic link or node, with its attributes."""
    if stat.S_ISREG(status.st_mode):
        _copy_data(old, new, status.st_size, reflink)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(old), new)
    else:
        os.mknod(new, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    _copy_attributes(old, new, status)


def _copy_data(old: str, new: str, size: int, reflink: bool) -> None:
    """Copy the content of a regular file."""
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
    """Copy the data of a file without its holes: the image of a disk may be far larger than the disk."""
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
    """Copy a range of bytes and return how many were copied."""
    try:
        # Shares blocks if the file system can.
        return os.copy_file_range(reader, writer, length, offset_src=start)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        return os.sendfile(writer, reader, start, length)


def _copy_attributes(old: str, new: str, status: os.stat_result) -> None:
    """Copy the owner first, which clears set-user-id bits and capabilities; then mode and attributes; times last."""
    os.chown(new, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(new, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(old, follow_symlinks=False):
        os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=False), follow_symlinks=False)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
