"""Records of the checkpoints that this host has, and what was captured under their names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts import base
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.planes.sandbox import get_provider
from benchflow.store import Store, storage_errors, unpin, write_atomic


class Kept(base.Model):
    """What this host has of one checkpoint."""

    workflow: str
    """Workflow of the root, whose end is the end of the checkpoint."""

    run_id: str
    """First run of that workflow."""

    provider: str
    tries: int = 0
    """How often the capture was begun, each time under names of its own."""

    checkpoint: Checkpoint | None = None
    """The checkpoint, once it is complete."""


def read_kept(file: Path) -> Kept | None:
    """Read a record; None if there is none."""
    try:
        return Kept.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None


def write_kept(file: Path, kept: Kept) -> None:
    """Write a record, in place of an earlier one."""
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(file, kept.model_dump_json().encode())


async def remove_layers(name: str, kept: Kept) -> None:
    """Remove all that was ever captured under a name."""
    provider = get_provider(kept.provider)
    for number in range(1, kept.tries + 1):
        await provider.remove_snapshots(f"{name}.{number}-")


async def remove_kept(file: Path, store: Store) -> None:
    """Remove a checkpoint from this host, and from the store. Missing is success."""
    kept = await asyncio.to_thread(read_kept, file)
    if kept is not None:
        await remove_layers(file.stem, kept)
    await asyncio.to_thread(unpin, store, file.stem)
    file.unlink(missing_ok=True)
