"""The host's record of the messages that were sent to an agent's process, which decides what is sent.

The sandbox has a copy, the journal `in`, which its root may have changed. If two workers take the session for theirs,
each message is still sent once, since this file has a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from benchflow.host_files import append_lines, lock, open_fd, raise_storage_errors, write_all
from benchflow.planes.agent.notes import Message

FILE = "in"
"""Name of the record in the directory of notes."""
_PIECE = 1024 * 1024


class SentMessages:
    """The record in a directory of notes: one JSON-RPC message per line."""

    def __init__(self, directory: Path) -> None:
        """Make it. Nothing is read or written yet."""
        self.file = directory / FILE
        self._read_to = 0
        self._requests: set[str] = set()
        # Offset and length in the record: an agent that reads files through its client is sent more than fits in
        # memory.
        self._answers: dict[str, tuple[int, int]] = {}

    def make(self) -> None:
        """Make an empty record, unless there is one."""
        with raise_storage_errors(self.file):
            self.file.touch(mode=0o600)

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[int]:
        """Hold the lock, read what other workers have sent until then, and yield the record's file descriptor."""
        # Not `locked`, which would make the directory of a session that was removed.
        with contextlib.ExitStack() as stack:
            with raise_storage_errors(self.file):
                fd = stack.enter_context(open_fd(self.file, os.O_RDWR | os.O_CREAT))
            lock(fd)
            self._read(fd)
            yield fd

    def add(self, fd: int, message: Message) -> bool:
        """Add a message, unless a request, or an answer, of its id exists. Return whether it was added.

        Args:
            fd: Descriptor from `hold_lock`.
            message: The message.
        """
        if "id" in message and _format_id(message) in (self._requests if "method" in message else self._answers):
            return False
        # In ASCII: half of a surrogate pair, which an agent sent and is sent back, cannot be encoded as UTF-8.
        line = json.dumps(message).encode() + b"\n"
        with raise_storage_errors(self.file):
            # A line that a crash truncated, and which is removed, was never delivered.
            append_lines(fd, line)
        self._read(fd)
        return True

    def has_request(self, request: Any) -> bool:
        """Return whether a request of this id was sent."""
        self._refresh()
        return json.dumps(request) in self._requests

    def find_answer(self, request: Any) -> Message | None:
        """Return the answer that was sent to the agent's request of this id; None if there is none."""
        self._refresh()
        place = self._answers.get(json.dumps(request))
        if place is None:
            return None
        with self.file.open("rb") as file:
            file.seek(place[0])
            answer: Message = json.loads(file.read(place[1]))
        return answer

    @property
    def size(self) -> int:
        """The size of all complete messages, in bytes, as of the last read."""
        return self._read_to

    def copy_after(self, offset: int, target: int) -> None:
        """Append the complete messages from an offset on to a file. The caller holds the lock.

        Args:
            offset: Offset in the record.
            target: Descriptor of the file.
        """
        with self.file.open("rb") as file:
            file.seek(offset)
            while piece := file.read(max(0, min(_PIECE, self._read_to - file.tell()))):
                write_all(target, piece)

    def read_after(self, offset: int) -> bytes:
        """Return the complete lines from an offset on."""
        with self.file.open("rb") as file:
            file.seek(offset)
            data = file.read()
        return data[: data.rfind(b"\n") + 1]

    def open(self) -> BinaryIO:
        """Open the record for reading."""
        return self.file.open("rb")

    def _refresh(self) -> None:
        with open_fd(self.file, os.O_RDONLY) as fd:
            self._read(fd)

    def _read(self, fd: int) -> None:
        """Index the complete messages that were added since the last read."""
        if os.fstat(fd).st_size == self._read_to:
            return
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                message = json.loads(line)
                if "id" in message and "method" in message:
                    self._requests.add(_format_id(message))
                elif "id" in message:
                    self._answers[_format_id(message)] = (self._read_to, len(line))
                self._read_to += len(line)


def _format_id(message: Message) -> str:
    return json.dumps(message["id"])
