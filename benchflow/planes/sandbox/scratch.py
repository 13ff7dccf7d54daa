"""Room on this host for work in progress: it goes with its maker, however that ends."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow.paths import state_dir
from benchflow.planes.sandbox.records import file_lock


@asynccontextmanager
async def scratch() -> AsyncIterator[Path]:
    """A new, empty directory, locked while its maker lives, gone afterwards."""
    await clear_scratch()
    place = _home() / secrets.token_hex(8)
    lock = place.with_suffix(".lock")
    async with file_lock(lock):
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
            lock.unlink(missing_ok=True)


async def clear_scratch() -> None:
    """Remove what those have left that died at it."""
    for name in {path.stem for path in _home().glob("*")}:
        lock = _home() / f"{name}.lock"
        async with file_lock(lock, wait=False) as held:
            if held:
                await asyncio.to_thread(shutil.rmtree, lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)


def _home() -> Path:
    return state_dir() / "scratch"
