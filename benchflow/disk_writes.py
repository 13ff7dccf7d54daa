"""Writes that are safe against a full disk and a power cut. Every function raises `OSError`."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, or raise: on a disk that fills up, one call may write a part without an error."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def append_all(fd: int, data: bytes) -> None:
    """Append every byte to an open file; on an error restore its size, so that no partial line stays, and raise."""
    size = os.fstat(fd).st_size
    try:
        write_all(fd, data)
    except OSError:
        os.ftruncate(fd, size)
        raise


def end_of_lines(fd: int) -> int:
    """Return the offset after the last line end of an open file; a partial line of a writer that died begins there."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def sync_directory(path: Path) -> None:
    """Wait until the entries of a directory would survive a power cut: fsync(2) of a file does not cover its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network filesystems cannot sync directories.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)
