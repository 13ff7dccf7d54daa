"""Outages of an embedded stack: its processes are frozen or killed, its disk is filled, and all of it is undone.

An outage begins when its context is entered, and is over when that is left, however the test ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from support.embedded import EmbeddedStack, Role
from support.signals import stopped

from benchflow.testing.waiting import until

Kind = Literal["server-killed", "server-frozen", "path-cut", "worker-frozen", "host-frozen", "disk-full"]

HEARTBEAT_TIMEOUT_SEC = 1.0
"""After which the server of these tests takes an activity for lost, and 5 s later, where it is away, the SDK itself."""

DISK_BYTES = 64 << 20
"""Size of the disk on which the server's database is."""

_FROZEN: dict[Kind, Role] = {
    "server-frozen": "server",
    # All connections to the server, of the worker and of everybody else, are relayed by this process.
    "path-cut": "enclosure",
    "worker-frozen": "worker",
}


@dataclass
class Window:
    """When an outage began and when it was over, as the clock of this machine has it."""

    began: float
    ended: float = 0.0

    def count(self, times: Iterable[float]) -> int:
        """Return how many of these moments are within the outage."""
        return sum(self.began < moment < self.ended for moment in times)


@asynccontextmanager
async def outage(stack: EmbeddedStack, kind: Kind) -> AsyncIterator[Window]:
    """Have an outage for as long as the context is open. What is just being started is waited for."""
    with ExitStack() as undone:
        if kind == "disk-full":
            await asyncio.to_thread(undone.enter_context, full_disk(stack.paths.database))
        elif kind == "host-frozen":
            undone.enter_context(stopped(stack.processes()))
            # Of what is inside of sandboxes, nothing says to which state directory it belongs.
            undone.enter_context(stack.world.frozen())
        elif kind == "server-killed":
            await until(lambda: stack.processes("server"), every=0.1)
            # Otherwise it would start the next server at once.
            undone.enter_context(stopped(stack.processes("supervisor")))
            stack.kill("server")
        else:
            undone.enter_context(stopped(await until(lambda: stack.processes(_FROZEN[kind]), every=0.1)))
        window = Window(time.time())
        yield window
        window.ended = time.time()


async def last(seconds: float) -> None:
    """Let an outage last so long: its length is what a test is about, not a condition that could be waited for."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        await asyncio.sleep(left)


@contextmanager
def tmpfs(mount_point: Path, size: int) -> Iterator[None]:
    """Have a filesystem of so many bytes at a directory, which is made if it is not there."""
    mount_point.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "benchflow-test", str(mount_point)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


@contextmanager
def small_disk(database: Path, mount_point: Path) -> Iterator[None]:
    """Have a database, of a server that was not started yet, on a small filesystem of its own."""
    with tmpfs(mount_point, DISK_BYTES):
        database.symlink_to(mount_point / database.name)
        yield


@contextmanager
def full_disk(database: Path) -> Iterator[None]:
    """Leave no byte for a database that `small_disk` has placed."""
    real = database.resolve()
    assert real != database
    with closing(sqlite3.connect(real, timeout=60, isolation_level=None)) as connection:
        # What the log of writes has room for would be written in spite of a full disk.
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    with filled(real.parent):
        yield


@contextmanager
def filled(directory: Path, *, but_for: int = 0) -> Iterator[None]:
    """Leave no space on the filesystem of a directory, or so many bytes."""
    filler = directory / "filler"
    try:
        fill(filler)
        os.truncate(filler, filler.stat().st_size - but_for)
        yield
    finally:
        filler.unlink()


def fill(file: Path) -> None:
    """Give a new file all that is left of its disk."""
    piece = 1 << 20
    size = 0
    with file.open("wb") as filler:
        while piece >= 4096:
            try:
                os.posix_fallocate(filler.fileno(), size, piece)
                size += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2


@contextmanager
def clock_stepped(seconds: float) -> Iterator[None]:
    """Set this machine's clock, which everything on it shares, ahead or back for as long as the context is open."""
    _step(seconds)
    try:
        yield
    finally:
        _step(-seconds)


def _step(seconds: float) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
