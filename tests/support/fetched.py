"""Snapshots as they lie on this host, made of databases that a test has written itself."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from benchflow.contracts.environment import StateFile, StateSnapshot


def fetched(directory: Path, **scripts: str | None) -> Path:
    """A fetched snapshot of the databases `/data/NAME.db`, each made by a script; None for one that is not there."""
    files = []
    for name, script in scripts.items():
        file = f"files/data/{name}.db"
        there = script is not None
        files.append(StateFile(path=f"/data/{name}.db", present=there, file=file if there else None))
        if script is not None:
            with writing(directory / file) as database:
                database.executescript(script)
    return told(directory, files)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[sqlite3.Connection]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        # No test is about a machine that goes down.
        database.execute("PRAGMA synchronous=OFF")
        yield database


def told(directory: Path, files: list[StateFile]) -> Path:
    """Write down what a snapshot is."""
    record = StateSnapshot(name="one", directory="/s/one", fence="f", files=tuple(files), taken_at=1.0, seconds=0.1)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "snapshot.json").write_text(record.model_dump_json())
    return directory
