"""The stdio of an agent's process as files: what is sent to it, what it says, how it ended.

`in`, `out`, `err` and `exit` lie in a directory that the sandbox mounts for the program that holds the agent's stdio.
Every line of `in` and `out` is a JSON-RPC message. The agent itself reaches none of them, but the sandbox's root may
put anything in their place, at any moment: so they are opened by `ConfinedDirectory`, and believed no further than an
agent is believed.
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
from benchflow.disk_writes import write_all
from benchflow.errors import ACPError, AgentOutputError, UnsafePathError
from benchflow.planes.agent.acp.sent import SentMessages
from benchflow.planes.agent.bounds import MAX_LINE, MAX_OUTPUT, MAX_VALUES, has_too_many_values
from benchflow.planes.agent.notes import Message, Notes, SessionFiles
from benchflow.store import storage_errors

PIECE = 256 * 1024
"""Bytes of `out` that are read at once, and most of a line that is held before it is whole."""

MAX_ERR = 16 * 1024 * 1024
"""Bytes of `err`, which begins anew beyond them."""

QUICK, SLOW = 0.004, 0.05
"""Seconds between two looks at a file that grows, and at one that has not for a while."""


def pause(quiet_sec: float) -> float:
    """Return the seconds to the next look at a file that has not grown for so long: a tenth of them."""
    return min(SLOW, max(QUICK, quiet_sec / 10))


SLICE = 0.005
"""Seconds of lines between two turns of the event loop."""

_JOURNALS = ("in", "out", "err")
_EXIT = "exit"
_MAX_EXIT = 64 * 1024
_TAIL = 4000
_ENDED = "ended"
"""The note of an end that the process could not record itself."""


@dataclass(frozen=True)
class Heard:
    """A line of `out`. end: the offset behind it. message: None for a line that is no JSON object."""

    end: int
    raw: bytes
    message: Message | None


class Wire:
    """The files of one agent process.

    Args:
        files: Where they are.
        max_line: Bytes of the longest line that is a message.
        max_output: Bytes of `out` beyond which the agent is ended.
    """

    def __init__(self, files: SessionFiles, *, max_line: int = MAX_LINE, max_output: int = MAX_OUTPUT) -> None:
        self.files = files
        self.notes = Notes(files.own_notes)
        self.sent = SentMessages(files.own_notes)
        self._max_line = max_line
        self._max_output = max_output
        self._delivered = 0

    def make(self) -> None:
        """Make the files, readable by root alone, where they are not there."""
        self.notes.make()
        self.sent.make()
        with storage_errors(self.files.shared):
            self.files.shared.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._confined() as shared:
                shared.make_directories(self.files.name)
                for name in _JOURNALS:
                    with suppress(FileExistsError):
                        os.close(shared.create(self._path(name)))

    # --- what we say ---------------------------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Send a message, unless one of its kind and id was sent already. Return whether it was new."""
        with self.sent.locked() as record:
            is_new = self.sent.add(record, message)
            self._deliver()
        return is_new

    def was_sent(self, request: Any) -> bool:
        """Tell whether a request of this id was sent."""
        return self.sent.has_request(request)

    def answer_to(self, request: Any) -> Message | None:
        """Return our answer to the agent's request of this id, None if none was sent."""
        return self.sent.answer_to(request)

    def _deliver(self) -> None:
        """Append to `in` what it lacks of what was sent. The lock of what was sent is held."""
        with self._opened("in", os.O_WRONLY | os.O_APPEND) as fd:
            size = os.fstat(fd).st_size
            if size < self._delivered:
                # Else a sandbox could have all of it written anew with each message.
                raise ACPError("a file of the agent's stdio was cut: in")
            with storage_errors(self.files.shared):
                self.sent.copy_after(size, fd)
            self._delivered = max(size, self.sent.size)

    # --- what the agent says -------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How much of what the agent said has been taken in, in bytes."""
        noted = self.notes.noted("position")
        return int(noted["to"]) if noted else 0

    @position.setter
    def position(self, offset: int) -> None:
        self.notes.keep("position", {"to": offset})

    @property
    def said(self) -> int:
        """How much the agent has said by now, in bytes."""
        return self.size("out")

    async def follow(self, offset: int) -> AsyncIterator[Heard | None]:
        """Yield the lines of `out` from an offset on, as they come; None at each look that found nothing new.

        Of a long line nothing is held until it is whole, and then no other session runs until the caller has taken it:
        so the worker holds one at a time, if the caller lets go of it before it awaits anything.

        Raises `ACPError` for a line that is too long to be a message, and where `out` was replaced; `AgentOutputError`
        where all of it is too long.
        """
        with self.sent.locked():
            # A worker that died may have noted a message, and not delivered it.
            self._deliver()
        held = b""
        at = offset
        last = rested = time.monotonic()
        with self._opened("out", os.O_RDONLY) as fd:
            while True:
                self._require_bounded(os.fstat(fd).st_size)
                data = os.pread(fd, PIECE, at)
                if not data:
                    yield None
                    await asyncio.sleep(pause(time.monotonic() - last))
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
                        yield Heard(offset, line, self._parsed(line))
                    del line
                    if time.monotonic() - rested > SLICE:
                        # A piece may be a hundred thousand lines: whoever takes them must not keep others waiting.
                        await asyncio.sleep(0)
                        rested = time.monotonic()
                is_held = offset + len(held) == at + begin
                at += len(data)
                self._require_message(at - offset)
                held = held + data[begin:] if is_held and at - offset <= PIECE else b""
                await asyncio.sleep(0)

    def _require_bounded(self, size: int) -> None:
        if size > self._max_output:
            raise AgentOutputError(f"the agent wrote more than {self._max_output} bytes", log_tail=self.log_tail())

    def _require_message(self, size: int) -> None:
        if size > self._max_line:
            raise ACPError(f"the agent wrote a line of more than {self._max_line} bytes", log_tail=self.log_tail())

    def _parsed(self, line: bytes) -> Message | None:
        """Return the JSON object of a line, None for one that is none."""
        if has_too_many_values(line):
            raise ACPError(f"the agent wrote a message of more than {MAX_VALUES} values", log_tail=self.log_tail())
        try:
            # NaN and its like are not JSON, but an agent that counts wrongly has still said something.
            message = json.loads(line, parse_constant=lambda name: None, parse_float=_finite)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    # --- how it ended --------------------------------------------------------------------------------

    def ended(self) -> str | None:
        """Return how the agent's process ended, as a reader would say it; None while it runs."""
        record = self._exit_record()
        if record is None:
            noted = self.notes.noted(_ENDED)
            return str(noted["error"]) if noted else None
        if "error" in record:
            return str(record["error"])[:_TAIL]
        return f"signal {record['signal']}" if record.get("signal") else f"exit status {record.get('code')}"

    @property
    def could_not_start(self) -> bool:
        """Whether there was no program to be started: it will not be there the next time either."""
        return (self._exit_record() or {}).get("start") is False

    def note_end(self, return_code: int) -> None:
        """Record the end of a process whose stdio proxy died before it could."""
        self.notes.note(_ENDED, {"error": f"the program that holds its files was ended ({return_code})"})

    def _exit_record(self) -> Message | None:
        """Return what the sandbox says of the end: an object of whatever content."""
        try:
            with self._confined() as shared:
                if not shared.has(self._path(_EXIT)):
                    return None
                record = json.loads(shared.read(self._path(_EXIT), _MAX_EXIT))
        except FileNotFoundError:
            # All of the session's files are gone, with its sandbox.
            return None
        except (ACPError, ValueError, RecursionError) as error:
            return {"error": f"nobody can tell how: its exit record cannot be read ({error})"}
        return record if isinstance(record, dict) else {"error": "nobody can tell how: its exit record is no object"}

    def log_tail(self) -> str | None:
        """Return the last lines of its stderr, None where there is none that can be read."""
        try:
            with self._confined() as shared, shared.open(self._path("err")) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                return file.read(_TAIL).decode(errors="replace").strip() or None
        except (FileNotFoundError, ACPError):
            return None

    def open_journal(self, name: str) -> BinaryIO | None:
        """Open a journal for reading: `in` as the host has it, and for a missing `exit` the host's note of the end, if
        there is one.

        Raises `ACPError` where it was replaced, and `FileNotFoundError` where the sandbox never had one.
        """
        if name == "in":
            return self.sent.open()
        noted = self.notes.noted(_ENDED) if name == _EXIT else None
        with self._confined() as shared:
            if name == _EXIT and not shared.has(self._path(name)):
                return io.BytesIO(json.dumps(noted).encode()) if noted is not None else None
            return shared.open(self._path(name))

    # --- copies of what a sandbox that mounts nothing has ---------------------------------------------

    def size(self, name: str) -> int:
        """Return the bytes of a journal."""
        with self._opened(name, os.O_RDONLY) as fd:
            return os.fstat(fd).st_size

    def append(self, name: str, at: int, data: bytes) -> None:
        """Append the part of `data` that a journal does not have yet, whose place in it is `at`.

        Raises `AgentOutputError` where `out` is too long already.
        """
        with self.sent.locked(), self._opened(name, os.O_RDWR | os.O_APPEND) as fd, storage_errors(self.files.shared):
            size = os.fstat(fd).st_size
            if name == "out":
                self._require_bounded(size)
            if name == "err" and size + len(data) > MAX_ERR:
                os.ftruncate(fd, 0)
            write_all(fd, data[max(0, size - at) :])

    def empty(self, name: str) -> None:
        """Begin a journal anew."""
        with self._opened(name, os.O_WRONLY) as fd:
            os.ftruncate(fd, 0)

    def put_exit(self, content: bytes) -> None:
        """Write the sandbox's record of the end."""
        with (
            storage_errors(self.files.shared),
            self._confined() as shared,
            shared.replacing(self._path(_EXIT)) as file,
        ):
            file.write(content)

    # --- opening -------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self.files.name}/{name}"

    @contextlib.contextmanager
    def _confined(self) -> Iterator[ConfinedDirectory]:
        """Yield the directory that the sandbox may write. Raises `ACPError` for what was put in a journal's place."""
        with ConfinedDirectory(self.files.shared) as shared:
            try:
                yield shared
            except UnsafePathError as error:
                raise ACPError(f"a file of the agent's stdio was replaced: {error.message}", file=error.file) from error
            except FileNotFoundError as error:
                raise ACPError(f"a file of the agent's stdio was removed: {error.filename}") from error

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        """Yield the descriptor of a journal. Raises `ACPError` where it was replaced or removed."""
        with self._confined() as shared:
            fd = shared.open_descriptor(self._path(name), flags)
        try:
            yield fd
        finally:
            os.close(fd)


def _finite(literal: str) -> float | None:
    """Return the number, None for one that is too large and would not be JSON when it is written again."""
    number = float(literal)
    return number if isfinite(number) else None
