"""The log files of the stack: how each is opened, bounded and read.

Processes write them through descriptors that they inherit or open themselves, and some of them are not ours. So a file
is bounded from outside, in place: what exceeds the limit is copied aside, and the file that everybody has open is cut
to nothing. Every descriptor appends, therefore the next line of each writer is the first of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

from benchflow.store import make_private_directory

LIMIT_BYTES = 50_000_000
"""Size from which a log file is cut. At most as much of it is kept beside it, in `NAME.1`."""
INTERVAL_SEC = 1.0
_SUFFIXES = (".log", ".out")
_LINE_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """Open a log file for a process to append its output to."""
    make_private_directory(path.parent)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def keep_logs_bounded(directory: Path) -> None:
    """Bound the log files of a directory for as long as this process runs.

    Each process of the stack does this for all of them, so that any may be killed, or hang.
    """

    def run() -> None:
        while True:
            time.sleep(INTERVAL_SEC)
            # The directory may be removed, and a file replaced, at any moment.
            with contextlib.suppress(OSError):
                bound_logs(directory)

    threading.Thread(target=run, name="log-files", daemon=True).start()


def bound_logs(directory: Path, limit: int = LIMIT_BYTES) -> None:
    """Cut the log files of a directory that are larger than the limit, and keep their last `limit` bytes aside."""
    with os.scandir(directory) as entries:
        large = [
            Path(entry.path)
            for entry in entries
            if entry.name.endswith(_SUFFIXES) and entry.stat(follow_symlinks=False).st_size > limit
        ]
    if not large:
        return
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # One process at a time: a second one would put the few lines since the first cut in the place of all others.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in large:
            _bound(path, limit)
    finally:
        os.close(lock)


def _bound(path: Path, limit: int) -> None:
    log = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(log)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= limit:
            return
        partial = path.with_name(f".{path.name}.new")
        try:
            kept = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                _copy_end(log, kept, status.st_size, limit)
            finally:
                os.close(kept)
        except OSError:
            # A full disk is one more reason to cut the file.
            partial.unlink(missing_ok=True)
        os.ftruncate(log, 0)
        with contextlib.suppress(FileNotFoundError):
            partial.replace(kept_part(path))
    finally:
        os.close(log)


def _copy_end(log: int, kept: int, size: int, limit: int) -> None:
    """Copy the last `limit` bytes, from the beginning of a line, and what is written meanwhile."""
    offset = size - limit
    end_of_line = os.pread(log, _LINE_BYTES, offset).find(b"\n")
    offset += end_of_line + 1
    # A writer that is faster than the disk would keep this busy for ever.
    while (left := size + limit - offset) > 0 and (count := os.sendfile(kept, log, offset, left)):
        offset += count


def kept_part(path: Path) -> Path:
    """Return where the end of a log file is kept that was cut."""
    return path.with_name(f"{path.name}.1")


def read_tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, also of one that was cut just now; nothing if there is none."""
    found: list[str] = []
    for part in (path, kept_part(path)):
        with contextlib.suppress(FileNotFoundError), part.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LINE_BYTES))
            found = [*log.read().decode(errors="replace").splitlines(), *found]
        if len(found) >= lines:
            break
    return "\n".join(found[-lines:])
