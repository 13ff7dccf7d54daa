"""Whose sandbox it is: a rollout's own, or the job's, in which its rollouts are episodes that follow each other."""

from __future__ import annotations

import asyncio
import time

from benchflow.activities.blueprint import Blueprint
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import episode_of
from benchflow.activities.session_files import remove_journals, remove_sessions
from benchflow.contracts import ids
from benchflow.contracts.activities import ProvisionInput
from benchflow.contracts.job import RolloutSpec, TaskRef
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox import get_provider
from benchflow.tasks import verified_in

CLEAR_LOGS = """rm -rf /logs/agent /logs/verifier /logs/artifacts
mkdir -m 0777 /logs/agent /logs/artifacts && mkdir -m 0755 /logs/verifier"""
"""Removes what was left in the places that every rollout finds empty."""


def sandbox_name(stack: str, request: ProvisionInput) -> str:
    """The name of the sandbox that a rollout is to be run in."""
    spec = request.spec
    if spec.job_run_id is not None:
        return shared_sandbox(stack, spec.job_run_id, spec.task)
    return ids.sandbox_name(stack, request.run_id, spec.task.name, request.generation)


async def blueprint_of(context: WorkerContext, spec: RolloutSpec) -> Blueprint:
    """What the sandbox of a rollout is made from; its task verifies where the job wants it to."""
    task, directory = await context.task(spec.task)
    external = await context.directory(spec.task.context) if spec.task.context else None
    jobs_dir = context.results(spec).root.parent.parent
    return Blueprint(
        verified_in(task, spec.run.verify_in, spec.run.reward_key),
        directory,
        external,
        spec.task.environment,
        context.directory,
        get_provider(spec.run.sandbox),
        hidden=tuple(str(path) for path in (directory, external, spec.task.source, jobs_dir) if path),
        rebuild=spec.run.rebuild,
    )


def sandbox_labels(context: WorkerContext, spec: RolloutSpec, run_id: str, generation: int) -> dict[str, str]:
    """What a sandbox of one rollout's own carries. run_id: of the first run of its workflow."""
    return {
        "benchflow.stack": context.stack,
        # Whose end is the sandbox's.
        "benchflow.workflow": spec.id,
        "benchflow.run": run_id,
        "benchflow.job": spec.job_name,
        "benchflow.task": spec.task.name,
        "benchflow.generation": str(generation),
        "benchflow.deadline": str(int(time.time() + spec.run.deadline_sec)),
    }


def shared_sandbox(stack: str, run: str, task: TaskRef) -> str:
    """The name of the sandbox that a job owns. run: the first of the job's workflow."""
    world = task.environment.manifest.name if task.environment else task.name
    return ids.shared_sandbox_name(stack, run, world)


async def enter(context: WorkerContext, spec: RolloutSpec, run_id: str, started: Sandbox) -> Sandbox:
    """A started sandbox as this rollout has it."""
    if spec.job_run_id is None:
        context.keep(started)
        return started
    ref = started.ref.model_copy(update={"episode": episode_of(spec, run_id)})
    sandbox = await context.sandbox(ref)
    # Once an episode, by a key that is its own.
    await sandbox.exec_once("enter", ["sh", "-c", CLEAR_LOGS], cwd="/")
    return sandbox


async def leave(context: WorkerContext, ref: SandboxRef) -> None:
    """End an episode: what its agent has left running ends, the world and its state stay."""
    context.forget(ref.name, episode=ref.episode)
    try:
        sandbox = await get_provider(ref.provider).attach(ref)
        await sandbox.kill_processes()
    except SandboxLostError:
        return
    # The results have their copies, and the episodes to come their share of the disk.
    await asyncio.to_thread(remove_journals, context, ref)


def release_sandbox(context: WorkerContext, name: str) -> None:
    """Forget a sandbox that is gone: the files of its sessions, its place among those that this host has."""
    context.forget(name)
    remove_sessions(context, name)
    context.slots.free(name)
