"""Reading a trajectory while it is written: its events as they come, until the rollout is over."""

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
"""The type of the one event that is no line of the file: what was read is an earlier run's, a new one begins."""

LOOK_EVERY = 0.03
"""Seconds between two looks at a file that has not grown."""

PIECE = 1024 * 1024

MAX_LINE = 64 * PIECE
"""Bytes of a line: one that has no end is no event."""


async def follow(path: Path, *, over: Callable[[], bool], every: float = LOOK_EVERY) -> AsyncIterator[dict[str, Any]]:
    """The events of a trajectory file in order, each as soon as its line is complete.

    The file may come later than the reader, and may be moved away while it is read, because the rollout is run again:
    then `{"type": "put_aside"}` is said, and the next file is read from its beginning. over: whether nothing will be
    written any more; what is there then is still read. Raises `ResultFileError` for a line that is no event.
    """
    reader: _Reader | None = None
    try:
        while True:
            # Asked before the file is read: what is found afterwards is all there will be.
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
    """One file, whatever its name has come to mean since it was opened."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd, self._offset = path, fd, 0

    @classmethod
    def open(cls, path: Path) -> _Reader | None:
        try:
            with open_stored(path) as file:
                return cls(path, os.dup(file.fileno()))
        except FileNotFoundError:
            return None

    def close(self) -> None:
        os.close(self._fd)

    def is_at(self, path: Path) -> bool:
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._fd)) and there.st_size >= self._offset

    def events(self) -> list[dict[str, Any]]:
        """The next complete lines, not too many at once. Nothing is remembered of a line that is not complete: its
        writer may have died, and then the next one removes it.
        """
        size = PIECE
        while True:
            data = os.pread(self._fd, size, self._offset)
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < size:
                break
            if size >= MAX_LINE:
                raise self._spoilt(data)
            size *= 2
        events = [self._event(line) for line in data[:whole].split(b"\n") if line]
        self._offset += whole
        return events

    def _event(self, line: bytes) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            return event
        raise self._spoilt(line)

    def _spoilt(self, line: bytes) -> ResultFileError:
        return ResultFileError(
            f"this line is no event of a trajectory: {line[:80].decode(errors='replace')}",
            file=str(self._path),
            remedy="restore the file; it is only ever appended to",
        )
