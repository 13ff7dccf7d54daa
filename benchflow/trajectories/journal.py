"""The trajectory file: one JSON object a line, appended only, each line once whatever is repeated after a crash."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.store import storage_errors, write_all


def timestamp(moment: datetime | None = None) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment = moment or datetime.now(UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a trajectory file; empty when there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def append_node(path: Path, node: str, role: str, lines: list[dict[str, Any]]) -> tuple[int, int]:
    """Append the events that led to `node`; those that are there already stay. Returns [first, last) sequence numbers.

    Every line gets `seq`, `ts`, `node` and `role`. A line that a crash cut in half is removed first.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # An attempt that was given up as lost may still be writing.
        fcntl.flock(fd, fcntl.LOCK_EX)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(fd, whole)
        present = [json.loads(line) for line in data[:whole].splitlines()]
        mine = [event["seq"] for event in present if event["node"] == node]
        first = mine[0] if mine else len(present)
        new = []
        for number, line in enumerate(lines[len(mine) :], first + len(mine)):
            event = {"seq": number, "ts": timestamp(), "node": node, "role": role} | line
            new.append(json.dumps(event, ensure_ascii=False))
        if new:
            with storage_errors(path):
                os.lseek(fd, 0, os.SEEK_END)
                # Half a character, which some agents cut an emoji to, is no text in any encoding.
                write_all(fd, ("\n".join(new) + "\n").encode(errors="replace"))
    finally:
        os.close(fd)
    return first, first + max(len(mine), len(lines))
