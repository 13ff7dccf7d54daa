"""Small facts that must survive this process: records on the host, and locks between processes.

They lie under the state directory, keyed by sandbox, so that nothing inside a sandbox can touch them, and so that
removing a sandbox removes them.
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
LONGEST_WAIT = 0.25


def write_record(file: Path, content: dict[str, Any]) -> None:
    """Write so that a reader, also after a crash, sees the old record or the new one, never a part."""
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
    """Hold a lock between processes; yields whether it is held (always, if `wait`).

    The kernel drops it when the process dies. Waiting asks again and again, because a thread blocked in flock
    could not be cancelled. Who holds the lock alone may remove its file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    pause = FIRST_WAIT
    while True:
        # Whoever may read the file may hold its lock.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as handle:
            try:
                fcntl.flock(handle, mode)
            except BlockingIOError:
                if not wait:
                    yield False
                    return
            else:
                # A lock on a file that was removed in the meantime keeps nobody out.
                if _is_at(handle.fileno(), file):
                    yield True
                    return
                continue
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_WAIT)


def _is_at(fd: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), file.stat())
    except FileNotFoundError:
        return False
