"""Records of containers on this host, beside those of their sandboxes: the frozen mark, and the capture lock.

A sandbox's handle is the id of its first container, also after a restore has replaced that.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from benchflow.errors import SandboxLostError
from benchflow.host_files import hold_lock_async, write_record
from benchflow.paths import find_state_dir


def container_records(handle: str) -> Path:
    """Return the directory of a sandbox's records."""
    return find_state_dir() / "exec" / handle


def forget_container(container: str) -> None:
    """Remove the lock file of a container that is removed."""
    _capture_lock(container).unlink(missing_ok=True)


def is_frozen(handle: str) -> bool:
    """Return whether a sandbox was frozen on request, not just left paused by a process that died."""
    return _frozen_mark(handle).exists()


def mark_frozen(handle: str, is_to_stand_still: bool) -> None:
    """Set or remove a sandbox's frozen mark."""
    if is_to_stand_still:
        write_record(_frozen_mark(handle), {})
    else:
        _frozen_mark(handle).unlink(missing_ok=True)


def _frozen_mark(handle: str) -> Path:
    # Not `*.json`, which are the records of `exec_once`.
    return container_records(handle) / "frozen"


@contextlib.asynccontextmanager
async def lock_for_exec(container: str) -> AsyncIterator[None]:
    """Hold the container's capture lock, shared, in the block that starts an exec: none starts while it is captured."""
    try:
        async with hold_lock_async(_capture_lock(container), shared=True):
            yield
    except SandboxLostError:
        _capture_lock(container).unlink(missing_ok=True)
        raise


@contextlib.asynccontextmanager
async def lock_for_capture(container: str, *, wait: bool = True) -> AsyncIterator[bool]:
    """Hold the container's capture lock in the block, which no exec's start and no other capture may overlap.

    Args:
        container: Id of the container.
        wait: Whether to wait for the lock. If not, yield at once whether it is held.
    """
    async with hold_lock_async(_capture_lock(container), wait=wait) as held:
        yield held


def _capture_lock(container: str) -> Path:
    return find_state_dir() / "locks" / f"capture-{container[:16]}.lock"
