"""The trajectory file: append-only JSON lines, each of them once, however often a write is repeated after a crash."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.host_files import append_lines, lock, raise_storage_errors, unlock
from benchflow.stored_files import read_lines

MAX_TRAJECTORY = 256 * 1024 * 1024
"""Bytes of a trajectory beyond which it takes no more of an agent's messages. Scorers and trainers hold it in memory;
those of real agents have some megabytes.
"""

MAX_EVENTS = 500_000
"""The same in events, each of which takes a kilobyte of memory even if an agent sends two bytes for it."""

_PIECE = 1024 * 1024

_HEAD = re.compile(rb'\{"seq": (\d+), "ts": "[^"]*", "node": "([^"\\]*)"')
"""Beginning of the lines that are written here: most readers need no more of them."""


def format_timestamp(moment: datetime | None = None) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds. None is now."""
    moment = moment or datetime.now(UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a trajectory file; empty if there is no file."""
    return list(iterate_journal(path))


def iterate_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a trajectory file, one at a time, since some are long; none if there is no file."""
    yield from map(json.loads, _iterate_lines(path))


def read_heads(path: Path) -> list[dict[str, Any]]:
    """Return `seq` and `node` of the complete lines of a trajectory file, without the rest, which may be far larger."""
    heads = []
    for line in _iterate_lines(path):
        head = _HEAD.match(line)
        event: dict[str, Any] = {"seq": int(head[1]), "node": head[2].decode()} if head else json.loads(line)
        heads.append({"seq": event["seq"], "node": sys.intern(event["node"])})
    return heads


def _iterate_lines(path: Path) -> Iterator[bytes]:
    try:
        yield from read_lines(path)
    except FileNotFoundError:
        return


class NodeWriter:
    """Appends the events that lead to one node as they come, and none twice.

    The caller passes all lines of the node from its first on, also after a crash; lines that are in the file already
    are skipped. Every line gets `seq`, `ts`, `node` and `role`. A line that a crash cut off is removed first.
    """

    def __init__(self, path: Path, node: str, role: str, *, redact: Callable[[str], str] = lambda line: line) -> None:
        """Open the file, or create it.

        Args:
            path: The trajectory file.
            node: Id of the node.
            role: Role that acts in the step.
            redact: Removes secrets from a line before it is written.

        Raises:
            StoreError: The file cannot be opened.
        """
        self._node, self._role, self._redact = node, role, redact
        self._path = path
        with raise_storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._read = self._lines = 0
        self._present = self._given = 0
        self._first: int | None = None
        with self._lock():
            pass

    @property
    def events(self) -> tuple[int, int]:
        """Return the range [first, last) of the `seq` of the node's events."""
        first = self._lines if self._first is None else self._first
        return first, first + self._present

    @property
    def is_full(self) -> bool:
        """Return whether it takes no more of an agent's messages. The engine's own are short, and still fit."""
        return self._read > MAX_TRAJECTORY or self._lines > MAX_EVENTS

    def written(self) -> Iterator[dict[str, Any]]:
        """Yield the node's events in the file, also those of other writers."""
        return (event for event in iterate_journal(self._path) if event["node"] == self._node)

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append the next lines of the node, except those that are in the file already. Raise `StoreError`."""
        with self._lock():
            new = lines[max(0, self._present - self._given) :]
            self._given += len(lines)
            if not new:
                return
            text = "".join(self._format_line(line, number) for number, line in enumerate(new, self._lines))
            with raise_storage_errors(self._path):
                # Some agents cut an emoji in half: a lone surrogate cannot be encoded.
                append_lines(self._fd, text.encode(errors="replace"))

    def skip(self, lines: int) -> bool:
        """Count the node's next lines as passed, which must be in the file already. Return False if they are not."""
        if self._given + lines > self._present:
            return False
        self._given += lines
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _format_line(self, line: dict[str, Any], number: int) -> str:
        """Return a line as it is written: with number, time, node and role, and redacted."""
        event = {"seq": number, "ts": format_timestamp(), "node": self._node, "role": self._role} | line
        return self._redact(json.dumps(event, ensure_ascii=False)) + "\n"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the file, and count the lines of other writers: an attempt that was given up as lost may still run."""
        lock(self._fd)
        try:
            self._catch_up()
            yield
            self._catch_up()
        finally:
            unlock(self._fd)

    def _catch_up(self) -> None:
        """Count the complete lines that were appended since the last call."""
        size = os.fstat(self._fd).st_size
        rest = b""
        while self._read + len(rest) < size:
            rest += os.pread(self._fd, _PIECE, self._read + len(rest))
            *whole, tail = rest.split(b"\n")
            for line in whole:
                self._count(line)
            self._read += len(rest) - len(tail)
            rest = tail

    def _count(self, line: bytes) -> None:
        """Count a line, and note whether it is the node's."""
        head = _HEAD.match(line)
        node = head.group(2).decode() if head else str(json.loads(line)["node"])
        if node == self._node:
            self._first = self._lines if self._first is None else self._first
            self._present += 1
        self._lines += 1


def append_node(path: Path, node: str, role: str, lines: list[dict[str, Any]]) -> tuple[int, int]:
    """Append all events that led to `node`, except those in the file already. Return the range of their `seq`."""
    writer = NodeWriter(path, node, role)
    try:
        writer.add(lines)
        return writer.events
    finally:
        writer.close()
