"""Safe reads of a stored job's files, which another user may have made.

In place of a file there may be a pipe that blocks for ever, a link to another file, or a file larger than memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from benchflow.confined import ConfinedDirectory, ConfinedPath
from benchflow.errors import ResultFileError, UnsafePathError

MAX_DOCUMENT = 256 * 1024 * 1024
"""Maximum bytes of a file that is read as a whole: a result, a tree, a configuration of thousands of tasks."""

MAX_JOURNAL = 5 * 1024 * 1024 * 1024
"""Maximum bytes of a file that is read line by line. The largest is the record of a rollout's model calls: it is full
at 4 GiB, by default, and the calls that are in progress then come on top.
"""

MAX_LINE = 1024 * 1024 * 1024
"""Maximum bytes of one line. A request of 100 MiB and a response of 256 MiB may be twice as long as JSON."""


def open_stored(file: Path, *, limit: int | None = None) -> BufferedReader:
    """Open a file of a stored job, without blocking.

    Raises:
        FileNotFoundError: There is none.
        ResultFileError: It is a link or no regular file, or has more than `limit` bytes.
    """
    try:
        opened = ConfinedPath(file.parent, file.name).open()
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
    except UnsafePathError as error:
        raise ResultFileError(
            "this is no regular file", file=str(file), remedy="restore the file, or remove its directory"
        ) from error
    # The size is checked before reading: a sparse file of any size costs its author nothing.
    if limit is not None and os.fstat(opened.fileno()).st_size > limit:
        opened.close()
        raise _make_size_error(file, limit)
    return opened


def read_stored(file: Path, *, limit: int = MAX_DOCUMENT) -> bytes:
    """Return the bytes of a file of a stored job. Raise as `open_stored`."""
    with open_stored(file, limit=limit) as opened:
        content = opened.read(limit + 1)
    if len(content) > limit:
        raise _make_size_error(file, limit)
    return content


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a stored job's file. Raise as `open_stored`, also for a line that is too long."""
    with open_stored(file, limit=MAX_JOURNAL) as opened:
        while (line := opened.readline(MAX_LINE + 1)).endswith(b"\n"):
            yield line
    if len(line) > MAX_LINE:
        raise _make_size_error(file, MAX_LINE)


def _make_size_error(file: Path, limit: int) -> ResultFileError:
    return ResultFileError(
        f"is larger than {limit // 1024 // 1024} MiB, and is not read",
        file=str(file),
        remedy="restore the file, or remove its directory",
    )


def require_directory(root: Path, name: str) -> None:
    """Raise `ResultFileError` unless a name below `root` is a directory reached through no link; missing is allowed.

    Args:
        root: Directory of a stored job, or one in it that was checked before.
        name: Path relative to it, chosen by the engine or by a file of the job.
    """
    try:
        with ConfinedDirectory(root) as directory:
            is_directory = stat.S_ISDIR(directory.status(name).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    except UnsafePathError:
        is_directory = False
    if not is_directory:
        raise ResultFileError(
            "is or leads through a link, or through a file, where a job has a directory",
            file=str(root / name),
            remedy="remove it, or put the directory itself there",
        )
