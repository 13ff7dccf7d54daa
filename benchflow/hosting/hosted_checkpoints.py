"""Take checkpoints of a rollout's sandbox on this host, resume after them, and revert the work that came after one.

A record of each checkpoint is written before anything is captured, so that orphans of a crash are found by the next
attempt, or by the reaper after the end of the tree's root.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from benchflow.checkpoints import capture, digest_world
from benchflow.contracts.activities import CheckpointInput
from benchflow.contracts.checkpoint import Checkpoint, SessionLayer
from benchflow.contracts.ids import cut, short_hash, slug
from benchflow.contracts.rollback import UndoInput, Undone
from benchflow.contracts.rollout_records import AgentSession, Usage, total
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import BenchFlowError
from benchflow.host_files import write_atomic
from benchflow.hosting.checkpoint_records import (
    CheckpointRecord,
    read_checkpoint_record,
    remove_layers,
    write_checkpoint_record,
)
from benchflow.hosting.freezing import freeze, thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.hosting.portable import pack_checkpoint
from benchflow.hosting.session_files import store_journals
from benchflow.hosting.verifier_files import remove_verifiers
from benchflow.hosting.worker_host import Host
from benchflow.paths import RolloutPaths
from benchflow.planes.agent import attribute_errors
from benchflow.results.reverted_files import (
    detach_reverted_calls,
    get_reverted_paths,
    list_child_usage,
    move_end_aside,
    move_reverted_aside,
)
from benchflow.stored_files import read_stored

UNDONE = "undone.json"
"""File in the directory of reverted files: the `Undone` of that roll-back."""


def make_checkpoint_id(stack: str, run_id: str, node: str, sandbox: str) -> str:
    """Return the id of a checkpoint, which is part of the names of its images.

    Args:
        stack: Identity of the stack.
        run_id: Run id of the first run of the root's workflow.
        node: Id of the node in the tree.
        sandbox: Name of the sandbox, because a rollout may reach a node again in another sandbox.
    """
    return f"bf-{cut(slug(node.replace('/', '-')), 24).lower()}-{short_hash(f'{stack}/{run_id}/{node}/{sandbox}', 16)}"


async def take_checkpoint(rollout: Hosted, work: CheckpointInput) -> Checkpoint:
    """Capture files, world state and agent session as of one moment, and return the checkpoint.

    A retry returns the checkpoint of an earlier attempt, or removes its incomplete images. Afterwards the sandbox
    either resumes, or is frozen and lends its slot. A checkpoint of a portable tree is packed into the store.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: Node, session, and whether the sandbox resumes at once.

    Raises:
        CallsUnderWayError: A call of the agent's model is still in flight.
        CheckpointError: The state changed during every attempt to capture it.
    """
    host, spec = rollout.host, rollout.spec
    name = make_checkpoint_id(host.stack, work.run_id, work.node, work.sandbox.name)
    file = host.paths.checkpoints / f"{name}.json"
    kept = await asyncio.to_thread(read_checkpoint_record, file)
    if kept is not None and kept.checkpoint is not None:
        await _continue_or_wait(rollout, work)
        return kept.checkpoint
    # A verifier in a clean room leaves it frozen.
    await thaw(rollout.sandbox, rollout.paths.root)
    root = spec.branch.root if spec.branch is not None else spec.id
    kept = kept or CheckpointRecord(workflow=root, run_id=work.run_id, provider=work.sandbox.provider)
    # Incomplete images of earlier attempts, by any process.
    await remove_layers(name, kept)
    kept = kept.model_copy(update={"tries": kept.tries + 1})
    await asyncio.to_thread(write_checkpoint_record, file, kept)
    checkpoint = await _capture(rollout, work, name, kept.tries)
    if spec.run.branch is not None and spec.run.branch.portable:
        checkpoint = await pack_checkpoint(rollout, checkpoint)
    await asyncio.to_thread(write_checkpoint_record, file, kept.model_copy(update={"checkpoint": checkpoint}))
    await _continue_or_wait(rollout, work)
    return checkpoint


async def _continue_or_wait(rollout: Hosted, work: CheckpointInput) -> None:
    """Release the agent's model calls, or freeze a sandbox that waits for its children and lend its slot."""
    if not work.goes_on:
        await freeze_and_lend(rollout.host, rollout.sandbox)
    elif (model := rollout.find_gateway_model(work.session)) is not None:
        await model.release()


async def freeze_and_lend(host: Host, sandbox: Sandbox) -> None:
    """Freeze a sandbox while children of its rollout run, and let other sandboxes use its slot."""
    await freeze(sandbox)
    host.slots.lend(sandbox.ref.name)


async def resume(rollout: Hosted, session: AgentSession | None) -> None:
    """Thaw a sandbox that waited for its rollout's children, and let model calls of its agent through again.

    Args:
        rollout: The rollout, attached to its sandbox.
        session: Session of the agent; None if none is open.
    """
    await thaw(rollout.sandbox, rollout.paths.root)
    if (model := rollout.find_gateway_model(session)) is not None:
        await model.release()


async def _capture(rollout: Hosted, work: CheckpointInput, name: str, number: int) -> Checkpoint:
    sandbox, ref, branch = rollout.sandbox, work.sandbox, rollout.spec.branch
    await remove_verifiers(rollout)
    world = await rollout.open_world()
    state = rollout.manifest.state if rollout.manifest is not None else None
    # Model calls are held from before the capture on, so that the session learns nothing that a copy would lack.
    session = await _capture_session(rollout, work)
    digests = None
    if session is not None and session.rung == "replay" and session.begun is not None:
        digests = await digest_world(sandbox, world)
    # Before the capture: afterwards the world may change, and a copy begins with what was captured.
    observed = await world.observe() if world is not None else ()
    captured = await capture(
        f"{name}.{number}",
        sandbox,
        rollout.provider,
        world if state is not None else None,
        paths=state.paths if state is not None else (),
        counters=lambda: _read_positions(rollout, work.session),
    )
    return Checkpoint(
        id=name,
        rollout=branch.root if branch is not None else rollout.spec.id,
        node=work.node,
        provider=ref.provider,
        host_id=ref.host_id,
        queue=ref.queue,
        workdir=ref.workdir,
        created_at=datetime.now(UTC),
        fence=captured.fence,
        steps_done=work.steps_done,
        attempts=captured.attempts,
        files=captured.files,
        state=captured.state,
        session=session,
        baseline=work.baseline,
        digests=digests,
        observed=observed,
        by_layer=dict(captured.by_layer),
    )


async def _read_positions(rollout: Hosted, held: AgentSession | None) -> Mapping[str, int | str]:
    """Return counters that change with each message to or from the agent; empty without a session."""
    if held is None:
        return {}
    session = await HostedAgent(rollout).attach_session(held)
    try:
        return session.positions()
    finally:
        await session.close()


async def _capture_session(rollout: Hosted, work: CheckpointInput) -> SessionLayer | None:
    held = work.session
    if held is None:
        return None
    agent = HostedAgent(rollout)
    session = await agent.attach_session(held)
    try:
        with attribute_errors(rollout.record):
            # Redacted, because it is stored in the workflow's history.
            captured = rollout.redact.within(await session.capture())
    finally:
        await session.close()
    model = rollout.find_gateway_model(held)
    requests = await model.count_requests() if model is not None else 0
    return SessionLayer(
        session=held, rung=agent.find_resume_mode(held), requests=requests, begun=work.begun, captured=captured
    )


# --- undoing --------------------------------------------------------------------------------------------------


async def undo(rollout: Hosted, work: UndoInput) -> Undone:
    """Move everything that the rollout has written since a checkpoint to `rollbacks/<label>/`.

    Nothing may run in its sandbox any more. A retry completes what an earlier attempt began.

    Args:
        rollout: The rollout.
        work: Nodes, steps and children to revert.

    Returns:
        The directory, and the model usage of the interrupted turn and of children that reported none.
    """
    paths = await asyncio.to_thread(rollout.make_results_directory)
    label, undone = await asyncio.to_thread(_find_label, paths, work)
    place = get_reverted_paths(paths, label)
    if undone is None:
        # Read before anything is moved: afterwards it is not known any more.
        used = [
            *await _count_interrupted(rollout, work),
            *await asyncio.to_thread(list_child_usage, paths, work.untold),
        ]
        directory = str(place.root.relative_to(paths.root))
        undone = Undone(used=total(used), directory=directory, run_id=work.run_id)
        write_atomic(place.root / UNDONE, undone.model_dump_json().encode())
    # The record of calls is replaced below; the gateway reads it again when the rollout is registered again.
    await rollout.model.forget()
    if work.sandbox is not None:
        episode = work.sandbox.episode
        await asyncio.to_thread(store_journals, rollout.sessions, episode, place.sessions, rollout.redact)

    def put_aside() -> None:
        spec = rollout.spec.model_copy(update={"restart": None})
        move_end_aside(paths, label, {"run_id": work.run_id, "generation": 0} | spec.model_dump(mode="json"))
        detach_reverted_calls(paths.model_calls, work.undone, label)
        move_reverted_aside(paths, label, undone=work.undone, steps=work.steps, chains=work.chains)

    moving = asyncio.create_task(asyncio.to_thread(put_aside))
    try:
        await asyncio.shield(moving)
    except asyncio.CancelledError:
        # A report after this activity must find either everything moved, or nothing.
        await asyncio.wait([moving])
        raise
    return undone


def _find_label(paths: RolloutPaths, work: UndoInput) -> tuple[str, Undone | None]:
    """Return the name of the directory for reverted files, and the `Undone` of an earlier attempt of the same run.

    A number is appended to a name that an earlier run of the rollout has used, which ended before its roll-back was
    recorded.
    """
    label, number = work.label, 1
    while True:
        try:
            noted = Undone.model_validate_json(read_stored(get_reverted_paths(paths, label).root / UNDONE))
        except FileNotFoundError:
            return label, None
        if noted.run_id in ("", work.run_id):
            return label, noted
        number += 1
        label = f"{work.label}-{number}"


async def _count_interrupted(rollout: Hosted, work: UndoInput) -> list[Usage]:
    """Return the usage of the turn under way, as the gateway counted it; empty if there is none, or it is not known."""
    if work.interrupted is None or work.sandbox is None or (model := rollout.find_gateway_model(work.session)) is None:
        return []
    try:
        used = await model.count_usage(work.interrupted)
    except BenchFlowError:
        # The usage is lost; the roll-back does not depend on it.
        return []
    return [used] if used is not None else []
