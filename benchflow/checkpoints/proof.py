"""Verification that a sandbox which was started from a checkpoint has that moment's files and databases."""

from __future__ import annotations

from benchflow.checkpoints.checkpoint_capture import FENCE
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import CheckpointError, StateError


async def prove(checkpoint: Checkpoint, sandbox: Sandbox, world: StatefulEnvironment | None) -> None:
    """Check that a sandbox is a copy of a checkpoint, and start its services on the checkpoint's state.

    The restore reads the state's own consistency token through each of its paths, and compares the hashes of the copies
    that it restores from.

    Args:
        checkpoint: The checkpoint.
        sandbox: The copy.
        world: Environment of the copy, whose services are not started yet. Without a state to restore, it is left so.

    Raises:
        CheckpointError: The files or the state are not those of the checkpoint.
    """
    try:
        found = (await sandbox.read_bytes(FENCE)).decode(errors="replace")
    except FileNotFoundError:
        found = ""
    if found != checkpoint.fence:
        raise CheckpointError(
            "the files of the copy are not those of the checkpoint: it has another fence",
            key=checkpoint.id,
            remedy="take the checkpoint again",
        )
    if world is None or checkpoint.state is None:
        return
    try:
        await world.restore(checkpoint.state.snapshot)
    except StateError as error:
        raise CheckpointError(
            f"the state of the copy is not that of the checkpoint: {error.message}",
            key=error.key,
            remedy="take the checkpoint again",
        ) from error
