"""Temporary directories on this host, which are removed after use, also if the process has died."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir


@asynccontextmanager
async def make_scratch() -> AsyncIterator[Path]:
    """Yield a new, empty directory, which is locked during the block and removed afterwards."""
    await clear_scratch()
    place = _home() / secrets.token_hex(8)
    lock = place.with_suffix(".lock")
    async with hold_lock_async(lock):
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
            lock.unlink(missing_ok=True)


async def clear_scratch() -> None:
    """Remove the temporary directories of dead processes."""
    for name in {path.stem for path in _home().glob("*")}:
        lock = _home() / f"{name}.lock"
        async with hold_lock_async(lock, wait=False) as held:
            if held:
                await asyncio.to_thread(shutil.rmtree, lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)


def _home() -> Path:
    return find_state_dir() / "scratch"
