"""The world's state, captured in its sandbox and put back: `SqliteStore`, and bringing a snapshot to this host."""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.confined import ConfinedPath
from benchflow.contracts.environment import StateSnapshot
from benchflow.errors import StateError, UnsafePathError
from benchflow.planes.environment.difference import diff_snapshots
from benchflow.planes.environment.keeper import Keeper
from benchflow.planes.environment.rows import FENCE_TABLE, RECORD, read_state
from benchflow.store import storage_errors, write_atomic

__all__ = ["FENCE_TABLE", "SNAPSHOTS", "SqliteStore", "diff_snapshots", "read_state", "remove_directories"]

SNAPSHOTS = "/var/lib/benchflow/snapshots"
"""Where a sandbox keeps its snapshots: of root's, and nobody else's."""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class SqliteStore:
    """A `StateStore` of SQLite databases. foreign: absolute paths, such as mounts of this host, whose files are not the
    world's, and are refused. directory: where the sandbox keeps snapshots. patience: seconds to wait for a database
    that a process holds; timeout: seconds for one snapshot or restore.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        foreign: Sequence[str] = (),
        directory: str = SNAPSHOTS,
        patience: float = 10.0,
        timeout: float = 300.0,
    ) -> None:
        self._keeper = keeper
        self._foreign = tuple(foreign)
        self._directory = directory
        self._patience = patience
        self._timeout = timeout

    async def snapshot(self, name: str, paths: Sequence[str]) -> StateSnapshot:
        """Keep all databases as of one moment, in which no process has a transaction open that writes.

        name: becomes a directory's. A snapshot of this name that is there already is returned as it is. Services may
        run; they wait for milliseconds, but those whose database has no write-ahead log for as long as its copy takes.
        Raises `StateBusyError` when a process does not let go, and `StateError` for a path that is no database, or not
        the sandbox's own, and where the sandbox's disk is full.
        """
        if not _NAME.fullmatch(name):
            raise StateError(
                f"{name!r} cannot be the name of a snapshot",
                remedy="use up to 200 letters, digits, '-', '_' and '.', and begin with a letter or digit",
            )
        for path in paths:
            if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path:
                raise StateError(
                    "is not the absolute path of a file, as it is without '..'",
                    key=path,
                    remedy="correct environment.state.paths",
                )
        request = {"directory": self._directory, "name": name, "paths": list(paths)}
        taken = StateSnapshot.model_validate(await self._ask("snapshot", request))
        # It names files that are read on this host later.
        known = all(file.path in paths and file.file == f"files{file.path}" for file in taken.files if file.present)
        if taken.directory != f"{self._directory}/{name}" or not known:
            raise StateError(
                f"the snapshot {name!r} is said to lie elsewhere than where it was asked for",
                remedy="keep the sandbox's processes from the files of a snapshot, and take it again",
            )
        return taken

    async def restore(self, snapshot: StateSnapshot, *, live: bool) -> None:
        """Put the state back and prove it: the fence is read through every path, then removed.

        live: into files that processes have open, one after the other; else they must be closed. Files that were not
        there are removed. Raises `StateBusyError` when a process has a database open, or does not let go, and
        `StateError` for a snapshot that is not the one that was taken, and where the sandbox's disk is full.
        """
        await self._ask("restore", {"snapshot": snapshot.model_dump(mode="json"), "live": live})

    async def fetch(self, snapshot: StateSnapshot, target: Path, limit_bytes: int) -> bool:
        """Bring a snapshot to this host, as the directory `target`, for `read_state` and `diff_snapshots`.

        False, and nothing done, for one of more bytes. What is there already is replaced unless it is this snapshot.
        Raises `StateError` for one that was changed since.
        """
        if snapshot.size > limit_bytes:
            return False
        record = target / RECORD
        told = snapshot.model_dump_json().encode()
        if record.is_file() and record.read_bytes() == told:
            return True
        part = target.with_name(f".{target.name}.part")
        with storage_errors(target):
            await asyncio.to_thread(remove_directories, part, target)
            there = await self._keeper.sandbox.download(snapshot.directory, part)
            await asyncio.to_thread(_prove, snapshot, part, there)
            # What the engine was told when it was taken is the truth, and not what the sandbox says now.
            write_atomic(part / RECORD, told)
            part.rename(target)
        return True

    async def _ask(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        common = {"foreign": list(self._foreign), "fence_table": FENCE_TABLE, "patience": self._patience}
        # The helper of a worker that died goes on: what it makes may be what is asked for here.
        common["wait"] = self._timeout / 2
        return await self._keeper.ask(operation, request | common, self._timeout)


def remove_directories(*directories: Path) -> None:
    """Remove directories of copies of snapshots, as far as they are there."""
    for directory in directories:
        if directory.is_dir():
            shutil.rmtree(directory)


def _prove(snapshot: StateSnapshot, directory: Path, there: bool) -> None:
    for file in snapshot.files:
        if file.present and not (there and _digest(ConfinedPath(directory, str(file.file))) == file.sha256):
            raise StateError(
                f"its copy in the snapshot {snapshot.name!r} is not the one that was taken",
                key=file.path,
                remedy="keep the sandbox's processes from the files of a snapshot, and take it again",
            )


def _digest(place: ConfinedPath) -> str | None:
    """Return the SHA-256 of a regular file, in hex; None where there is none."""
    try:
        with place.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, UnsafePathError):
        return None
