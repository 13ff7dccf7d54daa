"""Records on this host that survive the process, and locks between processes.

They are in the state directory, where nothing inside a sandbox can reach them, by sandbox, so that they are removed
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchflow.errors import DiskFullError, StoreError

FIRST_WAIT = 0.01
"""First interval in seconds between two attempts to lock; it doubles each time."""

LONGEST_WAIT = 0.25
"""Maximum interval in seconds."""


def write_record(file: Path, content: dict[str, Any]) -> None:
    """Write a record as JSON, atomically: a reader, also after a crash, sees the old record or the new one.

    Raises:
        DiskFullError: There is no space.
        StoreError: It can't be written for another reason.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
            json.dump(content, written)
        part.replace(file)
    except OSError as error:
        kind = DiskFullError if error.errno in (28, 122) else StoreError
        raise kind(
            f"cannot be written: {error.strerror}",
            file=str(file),
            remedy="free space or set BENCHFLOW_STATE_DIR to a writable directory",
        ) from error


@contextlib.asynccontextmanager
async def file_lock(file: Path, *, shared: bool = False, wait: bool = True) -> AsyncIterator[bool]:
    """Hold a lock between processes in the block, and yield whether it is held.

    The kernel releases it when the process dies. Waiting polls, because a thread blocked in `flock` could not be
    cancelled. The holder of an exclusive lock may remove the file.

    Args:
        file: File to lock, created if missing.
        shared: Whether other shared locks may be held at the same time.
        wait: Whether to wait for the lock. If not, yield False if another process holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    pause = FIRST_WAIT
    while True:
        # 0600: any user who may read the file could lock it.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as handle:
            try:
                fcntl.flock(handle, mode)
            except BlockingIOError:
                if not wait:
                    yield False
                    return
            else:
                # A lock on a file that was removed meanwhile excludes no other process.
                if _is_at(handle.fileno(), file):
                    yield True
                    return
                continue
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_WAIT)


def _is_at(fd: int, file: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(fd), file.stat())
    except FileNotFoundError:
        return False
