"""Rollback of a world's state in a trial: snapshot, write, restore, reset. Only stateful worlds have this part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchflow.contracts.environment import BASELINE, ReadyWorld, StateDiff, StateSnapshot
from benchflow.errors import StateError, WorldError
from benchflow.planes.environment.manifest_environment import ManifestEnvironment, WorldPlace
from benchflow.planes.environment.world_state import SqliteStore, diff_snapshots, read_state
from benchflow.planes.environment.writing import Post, Writer

T = TypeVar("T")

WRITE_TIMEOUT_SEC = 5.0
"""Seconds in which a write to a service must show in its database."""

_MAX_BYTES = 8 * 2**30
_TAIL = 2000


class Timed(NamedTuple):
    """Result of one operation."""

    detail: str
    """Observation, in words."""

    seconds: float
    """Duration of the operation itself, without its verification."""


class WorldRollback:
    """Rollback of a world, to be called in this order: `take_baseline`, `write`, `restore`, `reset`.

    Each verifies its effect on the state and raises `WorldError`, or its `StateError`, if that is missing.
    """

    def __init__(
        self,
        world: ManifestEnvironment,
        place: WorldPlace,
        writer: Writer,
        directory: Path,
        source: str,
        *,
        posts: Sequence[Post],
    ) -> None:
        """Make it.

        Args:
            world: The world, ready.
            place: Its sandbox.
            writer: Writes to the world.
            directory: Directory of this host for copies of the state.
            source: Path of the manifest's file, for errors.
            posts: Requests that write to services; without any, rows are inserted by SQLite.
        """
        self._world = world
        self._place = place
        self._writer = writer
        self._directory = directory
        self._source = source
        self._posts = posts
        self._digests: dict[str, str] = {}
        self._baseline: StateSnapshot

    @property
    def is_empty(self) -> bool:
        """Return whether none of the declared databases exists. Valid after `take_baseline`."""
        return not any(file.present for file in self._baseline.files)

    async def take_baseline(self) -> Timed:
        """Capture the baseline, and copy it to this host."""
        _, seconds = await _measure_time(self._world.capture_baseline())
        self._baseline = self._world.context.baseline()
        await self._read(self._baseline)
        absent = [file.path for file in self._baseline.files if not file.present]
        count = len(self._baseline.files) - len(absent)
        held = f"{count} database{'' if count == 1 else 's'}, {_format_size(self._baseline.size)}"
        return Timed(held + (f"; not in this image: {', '.join(absent)}" if absent else ""), seconds)

    async def write(self) -> Timed:
        """Write to the world, and poll until its state differs from the baseline. Raise `StateError` if it does not."""
        done, seconds = await _measure_time(self._write())
        until = time.monotonic() + WRITE_TIMEOUT_SEC
        while (await self._world.query()).digest == self._digests[BASELINE]:
            if time.monotonic() > until:
                raise StateError(
                    f"{done}, and the declared state is what it was before",
                    file=self._source,
                    key="environment.state.paths",
                    remedy="declare the files that the services really write to",
                )
            await asyncio.sleep(0.1)
        return Timed(f"{done}; the state has changed", seconds)

    async def restore(self) -> Timed:
        """Restore the baseline. Raise `StateError` unless the state is then the baseline's."""
        _, seconds = await _measure_time(self._world.restore(self._baseline))
        return Timed(await self._require_baseline("restored"), seconds)

    async def reset(self) -> Timed:
        """Write again, then reset. Raise `StateError` unless the state is then the baseline's.

        Where the entrypoint starts the services, reset is a no-op: the sandbox is recycled, without a comparison.
        """
        await self._write()
        _, seconds = await _measure_time(self._world.reset())
        if not self._world.manifest.owns_lifecycle:
            return Timed(await self._require_baseline("reset"), seconds)
        _, seconds = await _measure_time(self._world.recycle())
        return Timed(
            "a no-op: the entrypoint owns the services; hard: the sandbox was begun anew, and is ready", seconds
        )

    async def _write(self) -> str:
        """Send the requests, or insert a row into each database; return a sentence about it."""
        sandbox = self._place.sandbox
        if self._posts:
            try:
                return ", ".join([await self._writer.send(sandbox, post) for post in self._posts])
            except WorldError as error:
                logs = await self._world.logs(tail=_TAIL)
                error.log_tail = error.log_tail or "\n".join(f"{name}:\n{text}" for name, text in logs.items() if text)
                raise
        paths = [file.path for file in self._baseline.files if file.present]
        for path in paths:
            await self._writer.insert(sandbox, path)
        where = paths[0] if len(paths) == 1 else f"each of {len(paths)} databases"
        return f"SQLite in the sandbox, not a service, has put a row into {where}"

    async def _require_baseline(self, name: str) -> str:
        """Raise `StateError` unless the state is the baseline's. Wait until the world is ready, and return both.

        Args:
            name: Name of the snapshot that is taken for the comparison.
        """
        await self._read(await self._world.snapshot(name))
        if self._digests[name] != self._digests[BASELINE]:
            diff = await asyncio.to_thread(diff_snapshots, self._directory / BASELINE, self._directory / name)
            raise StateError(
                f"the state is not that of the snapshot: {_format_diff(diff)}",
                remedy="what a service writes by itself, as soon as it is started, is no state to roll back",
            )
        return f"the state is the snapshot's; {format_answers(await self._world.readiness())}"

    async def _read(self, snapshot: StateSnapshot) -> None:
        """Copy a snapshot to this host, and store the digest of its rows under the snapshot's name."""
        target = self._directory / snapshot.name
        if not await SqliteStore(self._place.helper).fetch(snapshot, target, _MAX_BYTES):
            raise StateError(f"the state is too large to be compared: {_format_size(snapshot.size)}")
        self._digests[snapshot.name] = (await asyncio.to_thread(read_state, target, rows=None)).digest


def format_answers(ready: ReadyWorld) -> str:
    """Return the answers of a world's readiness probes as a phrase."""
    if not ready.probes:
        return "no probe is declared"
    return ", ".join(f"{probe.target} {probe.answer}" for probe in ready.probes)


def _format_diff(diff: StateDiff) -> str:
    """Return a difference as a phrase: counts of rows by table."""
    parts = []
    for database in diff.databases:
        if database.change is not None:
            parts.append(f"{database.path} has {database.change}")
        for table in database.tables:
            counts = ((table.n_added, "added"), (table.n_removed, "removed"), (table.n_changed, "changed"))
            said = ", ".join(f"{count} {word}" for count, word in counts if count) or table.change or "differs"
            parts.append(f"{database.path}: {table.name}: {said}")
    return "; ".join(parts) or "in what is no row of a table"


def _format_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 1024:.0f} KiB"


async def _measure_time(work: Awaitable[T]) -> tuple[T, float]:
    started = time.monotonic()
    done = await work
    return done, time.monotonic() - started
