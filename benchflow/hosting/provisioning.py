"""Provide a rollout's sandbox on this host: its own, or a namespace in the one that all rollouts of a job share."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from benchflow.checkpoints import prove
from benchflow.contracts import ids
from benchflow.contracts.activities import ProvisionInput, Readied, ReadinessInput
from benchflow.contracts.job import RolloutSpec, TaskRef
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.errors import SandboxLostError, SandboxUnavailableError
from benchflow.host import SlotOwner
from benchflow.hosting.blueprint import await_start
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import FROM_CHECKPOINT, prepare_for_agent
from benchflow.hosting.hosted_world import compare_copy, make_entrypoint_env, prepare_for_world, start_world
from benchflow.hosting.portable import fetch_image
from benchflow.hosting.room_base import capture_for_rooms, remove_room_base
from benchflow.hosting.session_files import remove_journals
from benchflow.planes.sandbox import get_provider
from benchflow.results.write import begin_run

CLEAR_LOGS = """rm -rf /logs/agent /logs/verifier /logs/artifacts
mkdir -m 0777 /logs/agent /logs/artifacts && mkdir -m 0755 /logs/verifier"""
"""Shell script that empties the directories of logs and artifacts, which every rollout finds empty."""


def make_sandbox_name(stack: str, request: ProvisionInput) -> str:
    """Return the name of the sandbox for a rollout: one of its own for each generation, or the one its job shares.

    Args:
        stack: Identity of the stack.
        request: Rollout, run and generation.
    """
    spec = request.spec
    if spec.job_run_id is not None:
        return make_shared_name(stack, spec.job_run_id, spec.task)
    return ids.sandbox_name(stack, request.run_id, spec.task.name, request.generation)


def make_shared_name(stack: str, run: str, task: TaskRef) -> str:
    """Return the name of the sandbox that a job owns, and that its rollouts share.

    Args:
        stack: Identity of the stack.
        run: Run id of the first run of the job's workflow.
        task: A task of the job; its world's name, else its own, is part of the name.
    """
    world = task.environment.manifest.name if task.environment else task.name
    return ids.shared_sandbox_name(stack, run, world)


def find_slot_owner(request: ProvisionInput) -> SlotOwner:
    """Return the workflow whose end frees a sandbox and its slot: the job of a shared sandbox, else the rollout."""
    spec = request.spec
    if spec.job_run_id is not None:
        return SlotOwner(spec.job_id, spec.job_run_id)
    return SlotOwner(spec.id, request.run_id)


def make_sandbox_labels(stack: str, spec: RolloutSpec, owner: SlotOwner, generation: int) -> dict[str, str]:
    """Return the labels of a sandbox, by which a reaper knows when it is an orphan.

    Args:
        stack: Identity of the stack.
        spec: The rollout. Its deadline, counted from now, becomes the label's.
        owner: Workflow with whose end the sandbox ends.
        generation: Number of the sandbox among those of the rollout, from 0.
    """
    return {
        "benchflow.stack": stack,
        "benchflow.workflow": owner.workflow,
        "benchflow.run": owner.run,
        "benchflow.job": spec.job_name,
        "benchflow.task": spec.task.name,
        "benchflow.generation": str(generation),
        "benchflow.deadline": str(int(time.time() + spec.run.deadline_sec)),
    }


async def provision(rollout: Hosted, request: ProvisionInput, name: str) -> SandboxRef:
    """Provision the rollout's sandbox, attach the rollout to it, and return the sandbox's reference.

    From the task's image it is started and set up. From a checkpoint it is started as a copy, which is proved to be the
    checkpoint's. A retry finds the sandbox that an earlier attempt started, and runs no setup command twice.

    Args:
        rollout: The rollout.
        request: Run, generation and checkpoint. Unless it resumes the rollout, results of an earlier run are moved to
            `attempts/`.
        name: Name of the sandbox.

    Raises:
        MissingArtifactError: The job's directory is gone.
        ImageBuildError: The image can't be built.
        SandboxStartError: The sandbox does not start in time.
        SandboxSetupError: A setup command fails.
        CheckpointError: The copy is not in the checkpoint's state.
        UnsupportedFeatureError: The agent can't act in such a sandbox.
    """
    paths = await asyncio.to_thread(rollout.make_results_directory)
    identity = {"run_id": request.run_id, "generation": request.generation}
    if not request.goes_on:
        await asyncio.to_thread(begin_run, paths, identity | rollout.spec.model_dump(mode="json"))
    await _start(rollout, request, name, paths.build_log)
    if request.checkpoint is None:
        await rollout.blueprint.set_up(rollout.sandbox, rollout.make_env(), rollout.secrets)
        await capture_for_rooms(rollout, request)
    else:
        await asyncio.to_thread(rollout.mark, FROM_CHECKPOINT)
        await prove(request.checkpoint, rollout.sandbox, await rollout.open_world())
        await rollout.sandbox.control(CLEAR_LOGS)
    return rollout.ref


async def _start(rollout: Hosted, request: ProvisionInput, name: str, build_log: Path) -> None:
    """Find or start the sandbox, and attach to it."""
    host, spec, blueprint = rollout.host, rollout.spec, rollout.blueprint
    labels = make_sandbox_labels(host.stack, spec, find_slot_owner(request), request.generation)
    wanted = blueprint.make_spec(name, await blueprint.prepare_image(log=build_log), labels)
    wanted = await prepare_for_world(rollout, wanted, build_log)
    wanted = await prepare_for_agent(rollout, wanted, build_log)
    if request.checkpoint is not None:
        # Additions for world and agent that fit the root's image fit a checkpoint of its sandbox, too.
        image = await fetch_image(rollout, request.run_id, request.checkpoint)
        wanted = wanted.model_copy(update={"image": image})
    start = blueprint.provider.start(
        wanted,
        host_id=host.host_id,
        queue=host.queue,
        generation=request.generation,
        secrets=make_entrypoint_env(rollout),
    )
    started = await await_start(start, spec.run.sandbox_setup_timeout)
    if spec.job_run_id is None:
        host.cache_sandbox(started)
        await rollout.attach(started.ref)
        return
    await rollout.attach(started.ref.model_copy(update={"episode": make_namespace(spec, request.run_id)}))
    # Once per rollout: the idempotency key is in the rollout's namespace.
    await rollout.sandbox.exec_once("enter", ["sh", "-c", CLEAR_LOGS], cwd="/")


def make_namespace(spec: RolloutSpec, run_id: str) -> str:
    """Return the rollout namespace: the prefix of a rollout's names in a shared sandbox; empty in one of its own.

    Args:
        spec: The rollout.
        run_id: Run id of the first run of the rollout's workflow.
    """
    return f"e{ids.short_hash(run_id)}-" if spec.job_run_id is not None else ""


async def make_ready(rollout: Hosted, wanted: ReadinessInput) -> Readied | None:
    """Start the world, wait until its own probes and the task's healthcheck succeed, and return its state then.

    In a copy of a sandbox the world's answers are compared with those before the checkpoint. A retry finds a running
    world as it is.

    Args:
        rollout: The rollout, attached to its sandbox.
        wanted: Baseline and observations of the world that this one is a copy of.

    Returns:
        The world, its baseline, and a sentence for each difference; None for a task without a world.

    Raises:
        ReadinessError: World or healthcheck do not become healthy in time.
        UnprovenStateError: The copy answers differently, and the job requires equal answers.
    """
    world, readied = await rollout.open_world(), None
    if world is not None:
        ready = await start_world(rollout, world, wanted.baseline)
        must_be_equal = rollout.spec.run.require_proven_state
        changed = await compare_copy(world, wanted.observed, must_be_equal=must_be_equal)
        baseline = world.context.baseline() if world.is_stateful else None
        readied = Readied(world=ready, differences=changed, baseline=baseline)
    await rollout.wait_healthy()
    return readied


async def tear_down(rollout: Hosted) -> None:
    """Remove the rollout's sandbox, its slot and its session files, and invalidate its gateway token.

    In a sandbox that the job shares only the agent's processes end. A missing sandbox is success.
    """
    host, ref = rollout.host, rollout.ref
    await rollout.model.forget()
    if rollout.spec.job_run_id is not None:
        await _leave(rollout)
        return
    await remove_room_base(rollout)
    sandbox = host.forget(ref.name)
    if sandbox is not None:
        await sandbox.stop()
    else:
        try:
            await get_provider(ref.provider).remove(ref.name)
        except SandboxUnavailableError as error:
            # If the provider is gone for good, so are its sandboxes.
            if error.retryable:
                raise
    await asyncio.to_thread(host.release, ref.name)


async def _leave(rollout: Hosted) -> None:
    """End the processes that the agent has left running in a shared sandbox; the world and its state stay."""
    ref = rollout.ref
    rollout.host.forget(ref.name, episode=ref.episode)
    with suppress(SandboxLostError):
        sandbox: Sandbox = await get_provider(ref.provider).attach(ref)
        await sandbox.kill_processes()
        # The results have copies of the journals, and later rollouts need the space on the disk.
        await asyncio.to_thread(remove_journals, rollout.sessions, ref.episode)
