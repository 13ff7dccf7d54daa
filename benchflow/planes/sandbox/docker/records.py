"""What this host keeps of a container beside the records of its sandbox: whether it is frozen, the lock on its copying.

A sandbox's handle is the id of its first container, which those keep that a restore puts in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from benchflow.errors import SandboxLostError
from benchflow.paths import state_dir
from benchflow.planes.sandbox.records import file_lock, write_record


def container_records(handle: str) -> Path:
    """The directory of one sandbox's records."""
    return state_dir() / "exec" / handle


def forget_container(container: str) -> None:
    """Remove what is kept of a container that is removed."""
    _capture_lock(container).unlink(missing_ok=True)


def is_frozen(handle: str) -> bool:
    """Tell whether a sandbox is to stand still, and was not left paused by a process that died."""
    return _frozen_mark(handle).exists()


def mark_frozen(handle: str, is_to_stand_still: bool) -> None:
    """Note whether a sandbox is to stand still."""
    if is_to_stand_still:
        write_record(_frozen_mark(handle), {})
    else:
        _frozen_mark(handle).unlink(missing_ok=True)


def _frozen_mark(handle: str) -> Path:
    # Not among the `*.json` there, each of which is an execution.
    return container_records(handle) / "frozen"


@contextlib.asynccontextmanager
async def entering(container: str) -> AsyncIterator[None]:
    """Held while a command is started: the daemon starts none in a container that is being copied."""
    try:
        async with file_lock(_capture_lock(container), shared=True):
            yield
    except SandboxLostError:
        _capture_lock(container).unlink(missing_ok=True)
        raise


@contextlib.asynccontextmanager
async def capturing(container: str, *, wait: bool = True) -> AsyncIterator[bool]:
    """Held while a container is copied; yields whether it is."""
    async with file_lock(_capture_lock(container), wait=wait) as held:
        yield held


def _capture_lock(container: str) -> Path:
    return state_dir() / "locks" / f"capture-{container[:16]}.lock"
