"""Snapshot and restore of the world's state in its sandbox, and download of a snapshot to this host: `SqliteStore`."""

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
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.planes.environment.rows import FENCE_TABLE, RECORD, read_state
from benchflow.planes.environment.state_difference import diff_snapshots
from benchflow.planes.environment.world_helper import WorldHelper

__all__ = ["FENCE_TABLE", "SNAPSHOTS", "SqliteStore", "diff_snapshots", "read_state", "remove_directories"]

SNAPSHOTS = "/var/lib/benchflow/snapshots"
"""Directory of snapshots in a sandbox, which only root may enter."""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class SqliteStore:
    """Snapshots of the SQLite databases in a sandbox."""

    def __init__(
        self,
        helper: WorldHelper,
        *,
        foreign: Sequence[str] = (),
        directory: str = SNAPSHOTS,
        patience: float = 10.0,
        timeout: float = 300.0,
    ) -> None:
        """Make it.

        Args:
            helper: Client of the helper in the sandbox.
            foreign: Absolute paths, such as mounts of this host, whose files are not the world's, and are refused.
            directory: Directory of the snapshots in the sandbox.
            patience: Seconds to wait for a database that a process holds.
            timeout: Seconds for one snapshot or restore.
        """
        self._helper = helper
        self._foreign = tuple(foreign)
        self._directory = directory
        self._patience = patience
        self._timeout = timeout

    async def snapshot(self, name: str, paths: Sequence[str]) -> StateSnapshot:
        """Copy all databases as of one moment in which no process has a write transaction open.

        A snapshot of this name that exists already is returned as it is. Services may run: their writes are blocked
        for milliseconds, or, without a write-ahead log, for as long as the copy takes.

        Args:
            name: Name of the snapshot, and of its directory.
            paths: Absolute paths of the databases. A missing one is recorded as absent.

        Raises:
            StateBusyError: A process holds a database for longer than `patience`.
            StateError: A path is no database or not the sandbox's own, or the sandbox's disk is full.
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
        taken = StateSnapshot.model_validate(await self._run_helper("snapshot", request))
        # The sandbox's answer is untrusted, and its paths are read on this host later.
        known = all(file.path in paths and file.file == f"files{file.path}" for file in taken.files if file.present)
        if taken.directory != f"{self._directory}/{name}" or not known:
            raise StateError(
                f"the snapshot {name!r} is said to lie elsewhere than where it was asked for",
                remedy="keep the sandbox's processes from the files of a snapshot, and take it again",
            )
        return taken

    async def restore(self, snapshot: StateSnapshot, *, live: bool) -> None:
        """Restore the state and prove it: the fence (consistency token) is read through every path, then removed.

        Files that were absent in the snapshot are removed.

        Args:
            snapshot: The snapshot.
            live: Write into files that processes have open, one after the other; else all must be closed.

        Raises:
            StateBusyError: A process has a database open, or holds it for longer than `patience`.
            StateError: The snapshot has changed since it was taken, or the sandbox's disk is full.
        """
        await self._run_helper("restore", {"snapshot": snapshot.model_dump(mode="json"), "live": live})

    async def fetch(self, snapshot: StateSnapshot, target: Path, limit_bytes: int) -> bool:
        """Download a snapshot to this host, for `read_state` and `diff_snapshots`; return whether it is small enough.

        Args:
            snapshot: The snapshot.
            target: Directory to make. An existing one is replaced, unless it is this snapshot.
            limit_bytes: Maximum size: a larger snapshot is not downloaded.

        Raises:
            StateError: A file has changed since the snapshot was taken.
        """
        if snapshot.size > limit_bytes:
            return False
        record = target / RECORD
        told = snapshot.model_dump_json().encode()
        if record.is_file() and record.read_bytes() == told:
            return True
        part = target.with_name(f".{target.name}.part")
        with raise_storage_errors(target):
            await asyncio.to_thread(remove_directories, part, target)
            there = await self._helper.sandbox.download(snapshot.directory, part)
            await asyncio.to_thread(_check_files, snapshot, part, there)
            # The record is the engine's own, from when the snapshot was taken; the sandbox's may have been changed.
            write_atomic(part / RECORD, told)
            part.rename(target)
        return True

    async def _run_helper(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Run an operation of the helper with the settings that all of them share."""
        common = {"foreign": list(self._foreign), "fence_table": FENCE_TABLE, "patience": self._patience}
        # The helper of a worker that died keeps running and holds the lock, perhaps for this very request: wait for it.
        common["wait"] = self._timeout / 2
        return await self._helper.ask(operation, request | common, self._timeout)


def remove_directories(*directories: Path) -> None:
    """Remove directories and all that they contain; a missing one is skipped."""
    for directory in directories:
        if directory.is_dir():
            shutil.rmtree(directory)


def _check_files(snapshot: StateSnapshot, directory: Path, there: bool) -> None:
    """Raise `StateError` unless each file has its hash; `there`: whether the sandbox had the directory at all."""
    for file in snapshot.files:
        if file.present and not (there and _compute_digest(ConfinedPath(directory, str(file.file))) == file.sha256):
            raise StateError(
                f"its copy in the snapshot {snapshot.name!r} is not the one that was taken",
                key=file.path,
                remedy="keep the sandbox's processes from the files of a snapshot, and take it again",
            )


def _compute_digest(place: ConfinedPath) -> str | None:
    """Return the SHA-256 of a regular file, in hex; None if there is none."""
    try:
        with place.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, UnsafePathError):
        return None
