"""Records of the checkpoints that this host has, and what was captured under their names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts import base
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.ended import EndedState, RetainInput
from benchflow.contracts.ids import short_hash
from benchflow.errors import NotRestorableError
from benchflow.paths import StatePaths
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

    is_retained: bool = False
    """Whether it outlives its root, until it is as old as other leftovers, or released."""


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


async def retain(paths: StatePaths, work: RetainInput) -> None:
    """Have checkpoints of this host outlive their rollout, and record its state for a roll-back."""
    for checkpoint in work.checkpoints:
        file = paths.checkpoints / f"{checkpoint.id}.json"
        kept = await asyncio.to_thread(read_kept, file)
        if kept is not None:
            await asyncio.to_thread(write_kept, file, kept.model_copy(update={"is_retained": True}))
    file = _ended_file(paths, work.rollout)
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    await asyncio.to_thread(write_atomic, file, work.state.model_dump_json().encode())


async def recall(paths: StatePaths, rollout: str) -> EndedState:
    """Return the recorded state of a rollout that has ended, with the checkpoints that this host still has.

    Raises `NotRestorableError` where there is none.
    """
    try:
        state = EndedState.model_validate_json(await asyncio.to_thread(_ended_file(paths, rollout).read_bytes))
    except FileNotFoundError:
        raise NotRestorableError(
            f"nothing is known of how {rollout} ended", key="ROLLOUT", remedy="submit with --keep checkpoints"
        ) from None

    def left(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        return [one for one in checkpoints if read_kept(paths.checkpoints / f"{one.id}.json") is not None]

    update = {"retained": left(state.retained), "session_checkpoints": left(state.session_checkpoints)}
    return state.model_copy(update=update)


def _ended_file(paths: StatePaths, rollout: str) -> Path:
    return paths.ended / f"{short_hash(rollout, 32)}.json"
