"""The log files of the stack: opened for appending, bounded in size, read from their end.

Processes write them through descriptors that they inherit or open themselves, and some of the programs are not ours. So
a file is bounded from outside, in place: its end is copied to another file, and the file that the writers have open is
truncated. Every descriptor appends, therefore each writer's next line goes to the start of the file.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

from benchflow.host_files import lock, make_private_directory, open_fd

LIMIT_BYTES = 50_000_000
"""Size from which a log file is cut. At most as much of its end is retained beside it, in `NAME.1`."""
INTERVAL_SEC = 1.0
_SUFFIXES = (".log", ".out")
_LINE_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """Open a log file in append mode, for the output of a process."""
    make_private_directory(path.parent)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def keep_logs_bounded(directory: Path) -> None:
    """Start a thread that bounds the log files of a directory for as long as this process runs.

    Each process of the stack does this for all of them, so that any process may be killed, or hang.
    """

    def run() -> None:
        while True:
            time.sleep(INTERVAL_SEC)
            # The directory may be removed, and a file replaced, at any moment.
            with contextlib.suppress(OSError):
                bound_logs(directory)

    threading.Thread(target=run, name="log-files", daemon=True).start()


def bound_logs(directory: Path, limit: int = LIMIT_BYTES) -> None:
    """Truncate a directory's log files that exceed the limit; retain the last `limit` bytes of each in `NAME.1`."""
    with os.scandir(directory) as entries:
        large = [
            Path(entry.path)
            for entry in entries
            if entry.name.endswith(_SUFFIXES) and entry.stat(follow_symlinks=False).st_size > limit
        ]
    if not large:
        return
    with open_fd(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        # One process at a time: a second one would replace `NAME.1` by the few lines since the first cut.
        lock(fd)
        for path in large:
            _bound(path, limit)


def _bound(path: Path, limit: int) -> None:
    """Truncate one log file that exceeds the limit, after retaining its end."""
    with open_fd(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as log:
        status = os.fstat(log)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= limit:
            return
        # No `atomic_file`, whose names are random: of processes that are killed here, at most one copy stays.
        partial = path.with_name(f".{path.name}.new")
        try:
            with open_fd(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as kept:
                _copy_end(log, kept, status.st_size, limit)
        except OSError:
            # With a full disk, the end is not retained; the file is truncated all the more.
            partial.unlink(missing_ok=True)
        os.ftruncate(log, 0)
        with contextlib.suppress(FileNotFoundError):
            partial.replace(find_retained_part(path))


def _copy_end(log: int, kept: int, size: int, limit: int) -> None:
    """Copy about the last `limit` bytes, from the start of a line, and what is appended meanwhile."""
    offset = size - limit
    end_of_line = os.pread(log, _LINE_BYTES, offset).find(b"\n")
    offset += end_of_line + 1
    # Bounded, since a writer that is faster than the disk would keep this loop busy for ever.
    while (left := size + limit - offset) > 0 and (count := os.sendfile(kept, log, offset, left)):
        offset += count


def find_retained_part(path: Path) -> Path:
    """Return the path of the retained end of a truncated log file."""
    return path.with_name(f"{path.name}.1")


def read_tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, including the part that was cut off; empty if there is no file."""
    found: list[str] = []
    for part in (path, find_retained_part(path)):
        with contextlib.suppress(FileNotFoundError), part.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LINE_BYTES))
            found = [*log.read().decode(errors="replace").splitlines(), *found]
        if len(found) >= lines:
            break
    return "\n".join(found[-lines:])
