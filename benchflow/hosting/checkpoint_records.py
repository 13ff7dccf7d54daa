"""Records of the checkpoints on this host, by which their captures are found, retained and removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts import base
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.ended import EndedState, RetainInput
from benchflow.contracts.ids import short_hash
from benchflow.errors import NotRestorableError
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.store import Store, unpin


class CheckpointRecord(base.Model):
    """Record of one checkpoint on this host, written before anything is captured."""

    workflow: str
    """Workflow id of the tree's root; the checkpoint is an orphan after its end, unless it is retained."""

    run_id: str
    """Run id of the first run of that workflow."""

    provider: str
    """Name of the sandbox provider."""

    tries: int = 0
    """Number of captures that were started: number N names its images with the suffix `.N-`."""

    checkpoint: Checkpoint | None = None
    """The checkpoint; None until it is complete."""

    is_retained: bool = False
    """Whether it outlives its root, until it is released, or as old as other leftovers that are removed."""


def read_checkpoint_record(file: Path) -> CheckpointRecord | None:
    """Return the record in a file; None if there is none."""
    try:
        return CheckpointRecord.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None


def write_checkpoint_record(file: Path, kept: CheckpointRecord) -> None:
    """Write a record, in place of an earlier one. Raises `StoreError`."""
    with raise_storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(file, kept.model_dump_json().encode())


async def remove_layers(name: str, kept: CheckpointRecord) -> None:
    """Remove the images of all captures of a checkpoint, complete ones or not. Missing is success.

    Args:
        name: Id of the checkpoint.
        kept: Record of the checkpoint.
    """
    provider = get_provider(kept.provider)
    for number in range(1, kept.tries + 1):
        await provider.remove_snapshots(f"{name}.{number}-")


async def remove_checkpoint(file: Path, store: Store) -> None:
    """Remove a checkpoint: its images, its pins in the store, and last its record. Missing is success.

    Args:
        file: Record of the checkpoint; its name is the checkpoint's id.
        store: Store that the checkpoint was packed into.
    """
    kept = await asyncio.to_thread(read_checkpoint_record, file)
    if kept is not None:
        await remove_layers(file.stem, kept)
    await asyncio.to_thread(unpin, store, file.stem)
    file.unlink(missing_ok=True)


async def retain(paths: StatePaths, work: RetainInput) -> None:
    """Mark checkpoints of this host as retained, and write the state of their ended rollout for a later roll-back.

    Args:
        paths: State directory of this host.
        work: The rollout, its checkpoints and its state. A checkpoint without a record here is left out.
    """
    for checkpoint in work.checkpoints:
        file = paths.checkpoints / f"{checkpoint.id}.json"
        kept = await asyncio.to_thread(read_checkpoint_record, file)
        if kept is not None:
            await asyncio.to_thread(write_checkpoint_record, file, kept.model_copy(update={"is_retained": True}))
    file = _locate_ended_state(paths, work.rollout)
    with raise_storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    await asyncio.to_thread(write_atomic, file, work.state.model_dump_json().encode())


async def recall(paths: StatePaths, rollout: str) -> EndedState:
    """Return the state of an ended rollout that `retain` wrote, without checkpoints that this host no longer has.

    Args:
        paths: State directory of this host.
        rollout: Workflow id of the rollout.

    Raises:
        NotRestorableError: No state was written.
    """
    try:
        state = EndedState.model_validate_json(await asyncio.to_thread(_locate_ended_state(paths, rollout).read_bytes))
    except FileNotFoundError:
        raise NotRestorableError(
            f"nothing is known of how {rollout} ended", key="ROLLOUT", remedy="submit with --keep checkpoints"
        ) from None

    def left(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        return [one for one in checkpoints if read_checkpoint_record(paths.checkpoints / f"{one.id}.json") is not None]

    update = {"retained": left(state.retained), "session_checkpoints": left(state.session_checkpoints)}
    return state.model_copy(update=update)


def _locate_ended_state(paths: StatePaths, rollout: str) -> Path:
    return paths.ended / f"{short_hash(rollout, 32)}.json"
