"""The files between us and an agent: what was sent, what came, how it ended.

They lie in a directory of this host that the sandbox has mounted for the pump alone. Every line of `in` and `out` is a
JSON-RPC message. Only we write `in`, one line at a time under a lock, so that of two workers that both believe the
session theirs each message still goes out once.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.errors import ACPError
from benchflow.store import storage_errors, write_all

Message = dict[str, Any]

PIECE = 1024 * 1024
LONGEST_LINE = 64 * 1024 * 1024

QUICK, SLOW = 0.004, 0.05
"""Seconds between two looks at a file that grows, and at one that has not for a while."""

_TAIL = 4000


@dataclass(frozen=True)
class Heard:
    """A line of `out`. end: the offset behind it. message: None for a line that is no JSON object."""

    end: int
    raw: bytes
    message: Message | None


class Wire:
    """The directory of one agent process. longest_line: in bytes; a longer one is not a message."""

    def __init__(self, directory: Path, *, longest_line: int = LONGEST_LINE) -> None:
        self.directory = directory
        self._longest_line = longest_line
        self._sent_to = 0
        self._requests: set[str] = set()
        self._answers: dict[str, Message] = {}

    def make(self) -> None:
        """Make the directory, readable by root alone."""
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("in", "out", "err"):
                (self.directory / name).touch(mode=0o600)

    # --- what we say ---------------------------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Append a message, unless one of its kind and id is there already. Whether it was new."""
        with storage_errors(self.directory / "in"):
            fd = os.open(self.directory / "in", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._read_sent(fd)
            if "id" in message and _key(message) in (self._requests if "method" in message else self._answers):
                return False
            with storage_errors(self.directory / "in"):
                # A line that a crash cut in half was never handed on.
                os.ftruncate(fd, self._sent_to)
                os.lseek(fd, 0, os.SEEK_END)
                # Escaped: an agent's half of a surrogate pair, given back to it, has no other form.
                write_all(fd, json.dumps(message).encode() + b"\n")
            self._read_sent(fd)
            return True
        finally:
            os.close(fd)

    def was_sent(self, request: Any) -> bool:
        """Whether a request of this id is in `in`."""
        self._look_at_sent()
        return json.dumps(request) in self._requests

    def answer_to(self, request: Any) -> Message | None:
        """Our answer to the agent's request of this id, if it was sent."""
        self._look_at_sent()
        return self._answers.get(json.dumps(request))

    def _look_at_sent(self) -> None:
        fd = os.open(self.directory / "in", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._read_sent(fd)
        finally:
            os.close(fd)

    def _read_sent(self, fd: int) -> None:
        data = os.pread(fd, os.fstat(fd).st_size - self._sent_to, self._sent_to)
        whole = data[: data.rfind(b"\n") + 1]
        self._sent_to += len(whole)
        for line in whole.splitlines():
            message = json.loads(line)
            if "id" in message and "method" in message:
                self._requests.add(_key(message))
            elif "id" in message:
                self._answers[_key(message)] = message

    # --- what the agent says -------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How much of what the agent said has been taken in, in bytes."""
        noted = self.noted("position")
        return int(noted["to"]) if noted else 0

    @position.setter
    def position(self, offset: int) -> None:
        self.keep("position", {"to": offset})

    @property
    def said(self) -> int:
        """How much the agent has said by now, in bytes."""
        return (self.directory / "out").stat().st_size

    async def follow(self, offset: int) -> AsyncIterator[Heard | None]:
        """The lines of `out` from an offset on, as they come; None at each look that found nothing new.

        Raises `ACPError` for a line that is too long to be a message.
        """
        fd = os.open(self.directory / "out", os.O_RDONLY | os.O_CLOEXEC)
        rest = bytearray()
        last = time.monotonic()
        try:
            while True:
                data = os.pread(fd, PIECE, offset + len(rest))
                if not data:
                    yield None
                    await asyncio.sleep(QUICK if time.monotonic() - last < 1 else SLOW)
                    continue
                last = time.monotonic()
                rest += data
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    offset += len(line) + 1
                    if line.strip():
                        yield Heard(offset, bytes(line), _parsed(line))
                if len(rest) > self._longest_line:
                    raise ACPError(
                        f"the agent wrote a line of more than {self._longest_line} bytes", log_tail=self.log_tail()
                    )
                # A flood of lines must not keep others waiting.
                await asyncio.sleep(0)
        finally:
            os.close(fd)

    # --- how it ended --------------------------------------------------------------------------------

    def ended(self) -> str | None:
        """How the agent's process ended, as a reader would say it; None while it runs."""
        try:
            how = json.loads((self.directory / "exit").read_text())
        except FileNotFoundError:
            return None
        if "error" in how:
            return str(how["error"])
        return f"signal {how['signal']}" if how.get("signal") else f"exit status {how['code']}"

    @property
    def could_not_start(self) -> bool:
        """Whether there was no program to be started: it will not be there the next time either."""
        with suppress(FileNotFoundError):
            return json.loads((self.directory / "exit").read_text()).get("start") is False
        return False

    def note_end(self, return_code: int) -> None:
        """Write down the end of what should have done it itself and could not."""
        how = {"error": f"what holds its files was ended ({return_code})"}
        write_once(self.directory / "exit", json.dumps(how).encode())

    def log_tail(self) -> str | None:
        """The last lines of its error output."""
        try:
            with (self.directory / "err").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                return file.read().decode(errors="replace").strip() or None
        except FileNotFoundError:
            return None

    # --- what we note --------------------------------------------------------------------------------

    def note(self, name: str, content: Message) -> Message:
        """Write down once what must be the same after a crash; the first that was written counts."""
        place = self.directory / f"{name}.json"
        part = self.directory / f".{name}.{os.getpid()}"
        with storage_errors(place):
            part.write_text(json.dumps(content))
            with suppress(FileExistsError):
                place.hardlink_to(part)
            part.unlink()
        noted = self.noted(name)
        assert noted is not None
        return noted

    def keep(self, name: str, content: Message) -> None:
        """Write down what may change: the last that was written counts."""
        part = self.directory / f".{name}.{os.getpid()}"
        with storage_errors(part):
            part.write_text(json.dumps(content))
            part.replace(self.directory / f"{name}.json")

    def noted(self, name: str) -> Message | None:
        """What was written down under a name."""
        try:
            content: Message = json.loads((self.directory / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return content


def _key(message: Message) -> str:
    return json.dumps(message["id"])


def _parsed(line: bytes | bytearray) -> Message | None:
    try:
        # NaN and its like are not JSON, but an agent that counts wrongly has still said something.
        message = json.loads(line, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def write_once(file: Path, content: bytes) -> None:
    """Write a file whole, unless it is there: of several that do, the first counts."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with storage_errors(file):
        part.write_bytes(content)
        with suppress(FileExistsError):
            file.hardlink_to(part)
        part.unlink()
