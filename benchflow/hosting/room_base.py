"""Capture the sandbox of a rollout after its setup commands, as the base of clean rooms.

So a room has the files that these commands made for the agent, and not those of another run of them. A capture holds no
processes: if a process of the commands runs, a room starts from the image, and the commands are run again. Without
setup commands, rooms start from the image, as the agent's sandbox did.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from benchflow.contracts.activities import ProvisionInput
from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageRef
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import BenchFlowError
from benchflow.host_files import write_atomic
from benchflow.hosting.checkpoint_records import CheckpointRecord, remove_checkpoint, write_checkpoint_record
from benchflow.hosting.fidelity import read_fidelity
from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.inputs import find_config
from benchflow.stored_files import read_stored

_FILE = "room-base.json"
"""File in a sandbox's session directory: the `ImageRef` of the capture."""


async def capture_for_rooms(rollout: Hosted, request: ProvisionInput) -> None:
    """Capture the sandbox after its setup commands, once, if a verifier may get a clean room of the same base.

    Nothing is captured for children and in shared sandboxes, without setup commands, without snapshots, and if a
    process of the commands runs.

    Args:
        rollout: The rollout, attached to its sandbox.
        request: Names the run of the workflow, to which the capture belongs.
    """
    task, can = rollout.task, rollout.provider.capabilities()
    is_shared = rollout.spec.branch is not None or rollout.spec.job_run_id is not None
    if is_shared or not task.sandbox.setup_commands or not can.snapshot or can.lockdown != "clean_room":
        return
    names: list[str | None] = [step.name for step in task.steps] or [None]
    file = rollout.sessions / _FILE
    if not any(_may_have_room(rollout, name) for name in names) or file.is_file() or await rollout.sandbox.strangers():
        return
    # Recorded first: the reaper removes what the record names once the rollout has ended.
    kept = CheckpointRecord(workflow=rollout.spec.id, run_id=request.run_id, provider=rollout.ref.provider, tries=1)
    await asyncio.to_thread(write_checkpoint_record, _locate_record(rollout), kept)
    image = await rollout.sandbox.snapshot(f"{_locate_record(rollout).stem}.1-room")
    await asyncio.to_thread(write_atomic, file, image.model_dump_json().encode())


def read_room_base(rollout: Hosted) -> ImageRef | None:
    """Return the image of the capture of a rollout's sandbox; None if there is none."""
    try:
        return ImageRef.model_validate_json(read_stored(rollout.sessions / _FILE))
    except FileNotFoundError:
        return None


async def remove_room_base(rollout: Hosted) -> None:
    """Remove the capture of a rollout's sandbox, if there is one. Errors are suppressed: the reaper retries."""
    record = _locate_record(rollout)
    if record.is_file():
        with suppress(BenchFlowError):
            await remove_checkpoint(record, rollout.host.store)


def _locate_record(rollout: Hosted) -> Path:
    return rollout.host.paths.checkpoints / f"bf-room-{short_hash(f'{rollout.host.stack}/{rollout.ref.name}', 16)}.json"


def has_same_base(task: Task, step: str | None, config: VerifierConfig) -> bool:
    """Return whether a step's clean room has the base of the agent's sandbox: no table and no image of its own.

    Args:
        task: The task.
        step: Name of the step; None for the only one.
        config: Configuration of the step's verifier.
    """
    return config.sandbox is None and not task.verifier_build_of(step)


def _may_have_room(rollout: Hosted, step: str | None) -> bool:
    """Return whether the verifier of a step may run in a clean room with the base of the agent's sandbox."""
    config = find_config(rollout.task, step)
    if not has_same_base(rollout.task, step, config):
        return False
    known = read_fidelity(rollout.spec.task.digest, rollout.ref.provider, step)
    may_choose = config.sandbox_mode == "auto" and known is not None and known.is_faithful
    return may_choose or config.sandbox_mode == "separate" or rollout.spec.run.try_clean_room
