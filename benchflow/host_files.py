"""Files of this host that survive a crash, a full disk and a power cut: atomic writes, locks, appended lines.

Only for files whose names the host makes, in directories that nothing else can change: what a sandbox can name is
opened by `confined`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from benchflow.contracts.failures import storage_error

_POLL_SEC = 0.01
"""Seconds between two attempts of a thread to take a lock for a limited time."""

_FIRST_PAUSE_SEC, _MAX_PAUSE_SEC = 0.01, 0.25
"""First and maximum seconds between two attempts of a coroutine, which double each time."""


@contextlib.contextmanager
def raise_storage_errors(what: Path | str) -> Iterator[None]:
    """Raise a `StoreError` for each `OSError` about the engine's files. what: the file, for errors that name none."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, str(what)) from error


# --- directories -----------------------------------------------------------------------------------------


def make_private_directory(path: Path, *, durable: bool = False) -> None:
    """Make a directory, and missing ones above it, for its user alone. durable: the new ones survive a power cut."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        if durable and not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
            sync_directory(each.parent)
        else:
            each.mkdir(mode=0o700, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Wait until the entries of a directory would survive a power cut: fsync(2) of a file does not cover its name."""
    with open_fd(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            # Some network filesystems cannot sync directories.
            if error.errno != errno.EINVAL:
                raise


# --- atomic writes ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def create_atomic(
    path: Path, *, mode: int = 0o600, durable: bool = False, replaces: bool = True
) -> Iterator[IO[bytes]]:
    """Yield a new file that gets the name `path` as the block ends: readers, also after a crash, see all or nothing.

    It is discarded if the block raises, or closes it. Raises `OSError`.

    Args:
        path: Name of the file, whose directory exists.
        mode: Permissions, whatever the umask is.
        durable: Whether to wait until the file would survive a power cut. Without, it must be reproducible.
        replaces: Whether it replaces a file of the name. If not, `FileExistsError` is raised for one.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        partial = Path(file.name)
        try:
            yield file
            if file.closed:
                return
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
            if replaces:
                partial.replace(path)
            else:
                path.hardlink_to(partial)
            if durable:
                sync_directory(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True, replaces: bool = True) -> bool:
    """Write a file as `create_atomic` does, in a directory that is made if missing. Return whether it was written.

    Without `replaces`, a file that exists by then is left, and the result is False. Raises `StoreError`.
    """
    with raise_storage_errors(path):
        make_private_directory(path.parent, durable=durable)
        try:
            with create_atomic(path, mode=mode, durable=durable, replaces=replaces) as file:
                file.write(data)
        except FileExistsError:
            return False
    return True


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record as JSON, without fsync: for what is void after a reboot, or is found in another way."""
    write_atomic(path, json.dumps(content).encode(), durable=False)


def overwrite(path: Path, data: bytes) -> None:
    """Write a file in place, with data of always the same length, for which a disk that became full still has space.

    It stays the same file, also for those who hold a lock on it. Raises `OSError`.
    """
    with open_fd(path, os.O_WRONLY | os.O_CREAT) as fd:
        write_all(fd, data)


# --- locks -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_fd(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    """Yield the descriptor of a file or directory, which is closed as the block ends. Raises `OSError`."""
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def lock(fd: int, *, shared: bool = False, wait_sec: float = math.inf) -> bool:
    """Lock an open file or directory between processes, until it is closed, and return whether it is locked.

    Or until `unlock`; the kernel releases it when the process dies. A lock that is held already becomes one of the new
    kind, but is dropped before it is taken again: another process may have had its turn in between.

    Args:
        fd: Descriptor of the file.
        shared: Whether other processes may hold shared locks at the same time.
        wait_sec: Seconds to wait while other processes hold it; 0 for a single attempt.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if wait_sec == math.inf:
        fcntl.flock(fd, kind)
        return True
    deadline = time.monotonic() + wait_sec
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SEC)
        else:
            return True


def unlock(fd: int) -> None:
    """Release the lock of an open file that stays open."""
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def hold_lock(path: Path, *, shared: bool = False, wait_sec: float = math.inf) -> Iterator[int | None]:
    """Hold a lock on a file in the block, as `lock` does, and yield its descriptor; None if it is not locked.

    The file and its directory are made if missing. The holder of an exclusive lock may remove the file. Raises
    `StoreError`.
    """
    while True:
        with contextlib.ExitStack() as stack:
            with raise_storage_errors(path):
                make_private_directory(path.parent)
                # 0600: any user who may read the file could lock it.
                fd = stack.enter_context(open_fd(path, os.O_RDWR | os.O_CREAT))
                is_held = lock(fd, shared=shared, wait_sec=wait_sec)
            # A lock on a file that was removed meanwhile excludes no other process.
            if not is_held or _is_at(fd, path):
                yield fd if is_held else None
                return


def _is_at(fd: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextlib.asynccontextmanager
async def hold_lock_async(path: Path, *, shared: bool = False, wait: bool = True) -> AsyncIterator[bool]:
    """Hold a lock in the block, as `hold_lock` does, without blocking the event loop; yield whether it is held.

    Waiting polls, because a thread blocked in flock(2) could not be cancelled.

    Args:
        path: File to lock.
        shared: Whether other shared locks may be held at the same time.
        wait: Whether to wait for the lock. If not, yield False if another process holds it.
    """
    pause = _FIRST_PAUSE_SEC
    while True:
        with hold_lock(path, shared=shared, wait_sec=0) as fd:
            if fd is not None or not wait:
                yield fd is not None
                return
        await asyncio.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE_SEC)


# --- appended lines --------------------------------------------------------------------------------------


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, or raise: on a disk that fills up, one call may write a part without an error."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def append_lines(fd: int, data: bytes) -> None:
    """Append complete lines to a file of which nobody else writes meanwhile: all of them, or none and raise `OSError`.

    A partial last line, left by a writer that died or by a power cut, is removed first: its writer is run again, and
    the new line would be glued to it.

    Args:
        fd: Descriptor of the file, open for reading and writing.
        data: The lines, with their line ends.
    """
    end = find_end_of_lines(fd)
    try:
        os.ftruncate(fd, end)
        os.lseek(fd, end, os.SEEK_SET)
        write_all(fd, data)
    except OSError:
        os.ftruncate(fd, end)
        raise


def find_end_of_lines(fd: int) -> int:
    """Return the offset after the last line end of an open file; a partial line of a writer that died begins there."""
    # First the last byte alone: nearly always it ends a line, and this is read before each appended line.
    end, size = os.fstat(fd).st_size, 1
    while end:
        start = max(0, end - size)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, size = start, 65536
    return 0
