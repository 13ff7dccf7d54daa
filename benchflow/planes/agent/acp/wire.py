"""The journal transport: the stdio of an agent's process as files, with its input, output, stderr and exit record.

`in`, `out`, `err` and `exit` lie in a directory that the sandbox mounts for the stdio proxy. Every line of `in` and
`out` is a JSON-RPC message. The agent itself can access none of them, but the sandbox's root may put anything in their
place, at any moment: so they are opened by `ConfinedDirectory`, and trusted no more than an agent is.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, BinaryIO

from benchflow.confined import ConfinedDirectory
from benchflow.errors import ACPError, AgentOutputError, UnsafePathError
from benchflow.host_files import raise_storage_errors, write_all
from benchflow.planes.agent.acp.sent import SentMessages
from benchflow.planes.agent.bounds import MAX_LINE, MAX_OUTPUT, MAX_VALUES, has_too_many_values
from benchflow.planes.agent.notes import Message, Notes, SessionFiles

PIECE = 256 * 1024
"""Bytes of `out` that are read at once, and maximum bytes of an incomplete line that is buffered."""

MAX_ERR = 16 * 1024 * 1024
"""Maximum bytes of `err`, which is emptied before it exceeds them."""

QUICK, SLOW = 0.004, 0.05
"""Seconds between two polls of a file that grows, and of one that has not grown for a while."""


def compute_pause(quiet_sec: float) -> float:
    """Return the seconds to the next poll of a file that has not grown for `quiet_sec`: a tenth of them, limited."""
    return min(SLOW, max(QUICK, quiet_sec / 10))


SLICE = 0.005
"""Seconds for which lines are processed before the event loop has a turn."""

_JOURNALS = ("in", "out", "err")
_EXIT = "exit"
_MAX_EXIT = 64 * 1024
_TAIL = 4000
_ENDED = "ended"
"""Name of the note of an exit that the stdio proxy could not record."""


@dataclass(frozen=True)
class OutputLine:
    """A line of `out`."""

    end: int
    """Offset of the next line."""

    raw: bytes
    """Bytes of the line, without its end."""

    message: Message | None
    """The JSON object; None for a line that is none."""


class Wire:
    """The files of one agent process.

    Args:
        files: Where they are.
        max_line: Maximum bytes of a line that is a message.
        max_output: Maximum bytes of `out`.
    """

    def __init__(self, files: SessionFiles, *, max_line: int = MAX_LINE, max_output: int = MAX_OUTPUT) -> None:
        """Make it. No file is opened yet."""
        self.files = files
        self.notes = Notes(files.own_notes)
        self.sent = SentMessages(files.own_notes)
        self._max_line = max_line
        self._max_output = max_output
        self._delivered = 0

    def make(self) -> None:
        """Make the files that are missing, readable by root alone."""
        self.notes.make()
        self.sent.make()
        with raise_storage_errors(self.files.shared):
            self.files.shared.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._open_shared() as shared:
                shared.make_directories(self.files.name)
                for name in _JOURNALS:
                    with suppress(FileExistsError):
                        os.close(shared.create(self._make_path(name)))

    # --- messages to the agent -----------------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Send a message, unless a request, or an answer, of its id was sent. Return whether it was new."""
        with self.sent.hold_lock() as record:
            is_new = self.sent.add(record, message)
            self._deliver()
        return is_new

    def was_sent(self, request: Any) -> bool:
        """Return whether a request of this id was sent."""
        return self.sent.has_request(request)

    def find_answer(self, request: Any) -> Message | None:
        """Return the answer that was sent to the agent's request of this id; None if there is none."""
        return self.sent.find_answer(request)

    def _deliver(self) -> None:
        """Append to `in` the sent messages that it lacks. The caller holds the lock of the record."""
        with self._open_descriptor("in", os.O_WRONLY | os.O_APPEND) as fd:
            size = os.fstat(fd).st_size
            if size < self._delivered:
                # Otherwise a sandbox could have all of it rewritten with each message.
                raise ACPError("a file of the agent's stdio was cut: in")
            with raise_storage_errors(self.files.shared):
                self.sent.copy_after(size, fd)
            self._delivered = max(size, self.sent.size)

    # --- the agent's output --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset in `out` to which it was processed."""
        noted = self.notes.read("position")
        return int(noted["to"]) if noted else 0

    @position.setter
    def position(self, offset: int) -> None:
        self.notes.write("position", {"to": offset})

    @property
    def output_size(self) -> int:
        """The size of `out` by now, in bytes."""
        return self.read_size("out")

    async def follow(self, offset: int) -> AsyncIterator[OutputLine | None]:
        """Yield the lines of `out` from an offset on, as they come; None after each poll that found nothing new.

        A long line is not buffered until it is complete, and then no other session runs until the caller has consumed
        it: so the worker holds one at a time, if the caller drops its reference before it awaits anything.

        Raises:
            ACPError: A line is too long for a message, or `out` was replaced.
            AgentOutputError: All of `out` is too long.
        """
        with self.sent.hold_lock():
            # A worker may have recorded a message and died before it could deliver it.
            self._deliver()
        held = b""
        at = offset
        last = rested = time.monotonic()
        with self._open_descriptor("out", os.O_RDONLY) as fd:
            while True:
                self._require_bounded(os.fstat(fd).st_size)
                data = os.pread(fd, PIECE, at)
                if not data:
                    yield None
                    await asyncio.sleep(compute_pause(time.monotonic() - last))
                    continue
                last = time.monotonic()
                begin = 0
                while (end := data.find(b"\n", begin)) >= 0:
                    size = at + end - offset
                    self._require_message(size)
                    is_held = offset + len(held) == at + begin
                    line = held + data[begin:end] if is_held else os.pread(fd, size, offset)
                    held, begin, offset = b"", end + 1, at + end + 1
                    if line.strip():
                        yield OutputLine(offset, line, self._parse(line))
                    del line
                    if time.monotonic() - rested > SLICE:
                        # A piece may be a hundred thousand lines, whose consumer must not block the event loop.
                        await asyncio.sleep(0)
                        rested = time.monotonic()
                is_held = offset + len(held) == at + begin
                at += len(data)
                self._require_message(at - offset)
                held = held + data[begin:] if is_held and at - offset <= PIECE else b""
                await asyncio.sleep(0)

    def _require_bounded(self, size: int) -> None:
        if size > self._max_output:
            raise AgentOutputError(f"the agent wrote more than {self._max_output} bytes", log_tail=self.read_log_tail())

    def _require_message(self, size: int) -> None:
        if size > self._max_line:
            raise ACPError(f"the agent wrote a line of more than {self._max_line} bytes", log_tail=self.read_log_tail())

    def _parse(self, line: bytes) -> Message | None:
        """Return the JSON object of a line; None for a line that is none."""
        if has_too_many_values(line):
            raise ACPError(f"the agent wrote a message of more than {MAX_VALUES} values", log_tail=self.read_log_tail())
        try:
            # NaN and infinity are not JSON, but a message with a wrong number is still a message.
            message = json.loads(line, parse_constant=lambda name: None, parse_float=_parse_finite)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    # --- exit status and log -------------------------------------------------------------------------

    def describe_end(self) -> str | None:
        """Return how the agent's process ended, for error messages; None while it runs."""
        record = self._read_exit_record()
        if record is None:
            noted = self.notes.read(_ENDED)
            return str(noted["error"]) if noted else None
        if "error" in record:
            return str(record["error"])[:_TAIL]
        return f"signal {record['signal']}" if record.get("signal") else f"exit status {record.get('code')}"

    @property
    def could_not_start(self) -> bool:
        """Whether the program to start does not exist: a retry would fail, too."""
        return (self._read_exit_record() or {}).get("start") is False

    def note_end(self, return_code: int) -> None:
        """Record the exit status of a stdio proxy that died before it could record the agent's end."""
        self.notes.write_once(_ENDED, {"error": f"the program that holds its files was ended ({return_code})"})

    def _read_exit_record(self) -> Message | None:
        """Return the exit record from the sandbox; None if there is none. One that is unreadable has an `error`."""
        try:
            with self._open_shared() as shared:
                if not shared.has(self._make_path(_EXIT)):
                    return None
                record = json.loads(shared.read(self._make_path(_EXIT), _MAX_EXIT))
        except FileNotFoundError:
            # All files of the session were removed with its sandbox.
            return None
        except (ACPError, ValueError, RecursionError) as error:
            return {"error": f"nobody can tell how: its exit record cannot be read ({error})"}
        return record if isinstance(record, dict) else {"error": "nobody can tell how: its exit record is no object"}

    def read_log_tail(self) -> str | None:
        """Return the end of the agent's stderr; None if it is empty or cannot be read."""
        try:
            with self._open_shared() as shared, shared.open(self._make_path("err")) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                return file.read(_TAIL).decode(errors="replace").strip() or None
        except (FileNotFoundError, ACPError):
            return None

    def open_journal(self, name: str) -> BinaryIO | None:
        """Open a journal for reading: `in` from the host's record, and a missing `exit` from the host's note.

        Returns:
            None for `exit`, if there is neither record nor note.

        Raises:
            ACPError: The file was replaced or removed.
            FileNotFoundError: The shared directory does not exist.
        """
        if name == "in":
            return self.sent.open()
        noted = self.notes.read(_ENDED) if name == _EXIT else None
        with self._open_shared() as shared:
            if name == _EXIT and not shared.has(self._make_path(name)):
                return io.BytesIO(json.dumps(noted).encode()) if noted is not None else None
            return shared.open(self._make_path(name))

    # --- copies of what a sandbox that mounts nothing has ---------------------------------------------

    def read_size(self, name: str) -> int:
        """Return the size of a journal, in bytes."""
        with self._open_descriptor(name, os.O_RDONLY) as fd:
            return os.fstat(fd).st_size

    def append(self, name: str, at: int, data: bytes) -> None:
        """Append the part of `data` that a journal does not have yet.

        Args:
            name: Name of the journal. `err` is emptied first if it would be too long.
            at: Offset of `data` in it.
            data: Bytes from the sandbox's journal.

        Raises:
            AgentOutputError: `out` is too long.
        """
        with (
            self.sent.hold_lock(),
            self._open_descriptor(name, os.O_RDWR | os.O_APPEND) as fd,
            raise_storage_errors(self.files.shared),
        ):
            size = os.fstat(fd).st_size
            if name == "out":
                self._require_bounded(size)
            if name == "err" and size + len(data) > MAX_ERR:
                os.ftruncate(fd, 0)
            write_all(fd, data[max(0, size - at) :])

    def empty(self, name: str) -> None:
        """Empty a journal."""
        with self._open_descriptor(name, os.O_WRONLY) as fd:
            os.ftruncate(fd, 0)

    def write_exit(self, content: bytes) -> None:
        """Write the sandbox's exit record to this host."""
        with (
            raise_storage_errors(self.files.shared),
            self._open_shared() as shared,
            shared.replacing(self._make_path(_EXIT)) as file,
        ):
            file.write(content)

    # --- opening -------------------------------------------------------------------------------------

    def _make_path(self, name: str) -> str:
        return f"{self.files.name}/{name}"

    @contextlib.contextmanager
    def _open_shared(self) -> Iterator[ConfinedDirectory]:
        """Yield the directory that the sandbox may write. Raise `ACPError` if a journal was replaced or removed."""
        with ConfinedDirectory(self.files.shared) as shared:
            try:
                yield shared
            except UnsafePathError as error:
                raise ACPError(f"a file of the agent's stdio was replaced: {error.message}", file=error.file) from error
            except FileNotFoundError as error:
                raise ACPError(f"a file of the agent's stdio was removed: {error.filename}") from error

    @contextlib.contextmanager
    def _open_descriptor(self, name: str, flags: int) -> Iterator[int]:
        """Yield the descriptor of a journal. Raise `ACPError` if it was replaced or removed."""
        with self._open_shared() as shared:
            fd = shared.open_descriptor(self._make_path(name), flags)
        try:
            yield fd
        finally:
            os.close(fd)


def _parse_finite(literal: str) -> float | None:
    """Return a number; None for one that is too large, and could not be written as JSON again."""
    number = float(literal)
    return number if isfinite(number) else None
