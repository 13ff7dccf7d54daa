"""Following a trajectory while it is written: its events as they come, until the rollout is over."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchflow.errors import ResultFileError
from benchflow.stored_files import open_stored

PUT_ASIDE = "put_aside"
"""Type of the only event that is no line of the file: the events so far are of an earlier run, and a new one begins."""

POLL_INTERVAL_SEC = 0.03
"""Poll interval, in seconds, of a file that has not grown."""

PIECE = 1024 * 1024
"""Bytes that are read at once."""

MAX_LINE = 64 * PIECE
"""Maximum of bytes of a line: a longer one is no event."""


async def follow(
    path: Path, *, over: Callable[[], bool], every: float = POLL_INTERVAL_SEC
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a trajectory file in order, each as soon as its line is complete.

    The file may be created later, and may be moved away while it is read, because the rollout is run again: then
    `{"type": "put_aside"}` is yielded, and the next file is read from its beginning.

    Args:
        path: The file.
        over: Returns whether nothing more will be written; lines that are in the file by then are still yielded.
        every: Poll interval in seconds.

    Raises:
        ResultFileError: A line is no event.
    """
    reader: _Reader | None = None
    try:
        while True:
            # Called before the read: a read after the end finds everything.
            ended = over()
            reader = reader or _Reader.open(path)
            if reader is not None:
                here = reader.is_at(path)
                events = reader.events()
                for event in events:
                    yield event
                if events:
                    await asyncio.sleep(0)
                    continue
                if not here:
                    reader.close()
                    reader = None
                    yield {"type": PUT_ASIDE}
                    continue
            if ended:
                return
            await asyncio.sleep(every)
    finally:
        if reader is not None:
            reader.close()


class _Reader:
    """An open file, which its path may no longer name."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd, self._offset = path, fd, 0

    @classmethod
    def open(cls, path: Path) -> _Reader | None:
        """Open the file; None if there is none."""
        try:
            with open_stored(path) as file:
                return cls(path, os.dup(file.fileno()))
        except FileNotFoundError:
            return None

    def close(self) -> None:
        os.close(self._fd)

    def is_at(self, path: Path) -> bool:
        """Return whether the path still names this file, and it was not truncated."""
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._fd)) and there.st_size >= self._offset

    def events(self) -> list[dict[str, Any]]:
        """Return the next complete lines, about `PIECE` bytes at once.

        An incomplete line is not buffered: its writer may have died, and then the next writer removes it.
        """
        size = PIECE
        while True:
            data = os.pread(self._fd, size, self._offset)
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < size:
                break
            if size >= MAX_LINE:
                raise self._make_error(data)
            size *= 2
        events = [self._parse_event(line) for line in data[:whole].split(b"\n") if line]
        self._offset += whole
        return events

    def _parse_event(self, line: bytes) -> dict[str, Any]:
        """Return the event in a line. Raise `ResultFileError` if it is none."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            return event
        raise self._make_error(line)

    def _make_error(self, line: bytes) -> ResultFileError:
        return ResultFileError(
            f"this line is no event of a trajectory: {line[:80].decode(errors='replace')}",
            file=str(self._path),
            remedy="restore the file; it is only ever appended to",
        )
