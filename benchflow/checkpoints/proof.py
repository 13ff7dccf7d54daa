"""Proving a copy: a sandbox that was started from a checkpoint is of that moment, in its files and in its databases."""

from __future__ import annotations

from benchflow.checkpoints.capture import FENCE
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import Environment
from benchflow.errors import StateError, TornCheckpointError


async def prove(checkpoint: Checkpoint, sandbox: Sandbox, world: Environment | None) -> None:
    """Raise `TornCheckpointError` unless the copy is the checkpoint's, and have its services run on its state.

    world: of the copy, with its services not started yet; one without a state is left so. The fence of the state is
    read through every path of it when it is put back, and the copies that it is put back from are compared by their
    hashes.
    """
    try:
        found = (await sandbox.read_bytes(FENCE)).decode(errors="replace")
    except FileNotFoundError:
        found = ""
    if found != checkpoint.fence:
        raise TornCheckpointError(
            "the files of the copy are not those of the checkpoint: it has another fence",
            key=checkpoint.id,
            remedy="take the checkpoint again",
        )
    if world is None or checkpoint.state is None:
        return
    try:
        await world.restore(checkpoint.state.snapshot)
    except StateError as error:
        raise TornCheckpointError(
            f"the state of the copy is not that of the checkpoint: {error.message}",
            key=error.key,
            remedy="take the checkpoint again",
        ) from error
