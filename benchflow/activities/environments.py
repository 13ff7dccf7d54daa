"""The world of a rollout, where a manifest describes one: what its sandbox is started with, and its life.

What knows how a world is started, watched, captured and put back is the environment plane; here it is told which
sandbox, which variables and which directories are the rollout's.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.activities.context import WorkerContext
from benchflow.contracts.agent import TOOLBOX_ROOT
from benchflow.contracts.environment import BASELINE, Manifest, Observation, StateSnapshot
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.sandbox import SandboxProvider, SandboxRef, SandboxSpec
from benchflow.contracts.task import Task
from benchflow.errors import UnprovenStateError, WorldError
from benchflow.paths import RolloutPaths
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.planes.environment.observing import differences
from benchflow.planes.environment.outfit import Outfit
from benchflow.planes.environment.outfit import fit_out_world as fit_out
from benchflow.planes.environment.state import diff_snapshots, read_state
from benchflow.planes.sandbox import get_provider
from benchflow.secrets import Secrets
from benchflow.store import storage_errors, write_atomic

MOST_STATE = 256 * 1024 * 1024
"""Bytes of a snapshot that are fetched from a sandbox, to be read and kept with the results."""

MOST_ROWS = 10_000
"""Rows of a table whose values a verifier is shown."""

MOST_LOG = 4 * 1024 * 1024
"""Characters of a service's log that are kept with the results."""

LOOK_EVERY = 2.0
"""Seconds between two looks at whether the world still lives, while an agent acts in it."""

_OUTFIT = "world.json"


def manifest_of(spec: RolloutSpec) -> Manifest | None:
    return spec.task.environment.manifest if spec.task.environment else None


def command_env(context: WorkerContext, spec: RolloutSpec, task: Task, *tables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: the task's id, if worlds learn it so, the sandbox's variables, the phase's own,
    with values put in for names.
    """
    manifest = manifest_of(spec)
    told = manifest.task_env(task.name, "exec") if manifest else {}
    return Secrets.of_job(context.paths, spec.job_id).resolve(told, task.sandbox.env, *tables)


def entrypoint_env(context: WorkerContext, spec: RolloutSpec) -> dict[str, str]:
    """What the image's entrypoint alone is given."""
    manifest = manifest_of(spec)
    if manifest is None or not manifest.owns_lifecycle:
        return {}
    return Secrets.of_job(context.paths, spec.job_id).forwarded(manifest)


# --- its sandbox ----------------------------------------------------------------------------------------


async def fit_out_world(
    context: WorkerContext, spec: RolloutSpec, provider: SandboxProvider, wanted: SandboxSpec, log: Path
) -> SandboxSpec:
    """What a sandbox must be started with for its world."""
    manifest = manifest_of(spec)
    if manifest is None:
        return wanted
    known, paths = context.interpreters, context.paths
    wanted, outfit = await fit_out(manifest, wanted, provider, task=spec.task.name, paths=paths, known=known, log=log)
    directory = context.paths.sessions / wanted.name
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(directory / _OUTFIT, outfit.model_dump_json().encode())
    return wanted


def episode_of(spec: RolloutSpec, run_id: str) -> str:
    """What marks a rollout's own things in a sandbox that several use; empty in a sandbox of its own."""
    return f"e{short_hash(run_id)}-" if spec.job_run_id is not None else ""


async def world_of(
    context: WorkerContext, spec: RolloutSpec, task: Task, ref: SandboxRef
) -> ManifestEnvironment | None:
    """The world that a rollout is set in, None for a task without one."""
    environment = spec.task.environment
    if environment is None:
        return None
    # The sandbox as such: a world outlives the episodes in it.
    whole = await context.sandbox(ref.model_copy(update={"episode": ""}))
    outfit = Outfit.model_validate_json((context.paths.sessions / ref.name / _OUTFIT).read_bytes())
    forwarded = Secrets.of_job(context.paths, spec.job_id).forwarded(environment.manifest)
    return ManifestEnvironment(
        environment.manifest,
        whole,
        get_provider(ref.provider),
        keeper=outfit.keeper(whole),
        task=task.name,
        env=command_env(context, spec, task) | forwarded,
        source=environment.source,
        foreign=(TOOLBOX_ROOT,),
        probed=context.installed.get((spec.task.digest, environment.digest)),
    )


async def start_world(context: WorkerContext, spec: RolloutSpec, task: Task, ref: SandboxRef) -> None:
    """Start the services of a rollout's world; what was learned of its image spares the next one the probes."""
    world = await world_of(context, spec, task, ref)
    if world is not None and spec.task.environment is not None:
        seen = await world.provision()
        known = {status.name: True for status in seen if status.state == "running"}
        context.installed[(spec.task.digest, spec.task.environment.digest)] = known


async def died(world: ManifestEnvironment) -> None:
    """Raise `ServiceDiedError` as soon as the world breaks; never returns."""
    while True:
        await world.check()
        await asyncio.sleep(LOOK_EVERY)


async def end_world(context: WorkerContext, world: ManifestEnvironment, ref: SandboxRef) -> None:
    """End a world that is not kept alive. Written down before, so that whoever does it again does not find it dead."""
    _ended(context, ref).touch()
    await world.teardown()


def has_ended_world(context: WorkerContext, ref: SandboxRef) -> bool:
    """Whether the engine ends the world itself, or has."""
    return _ended(context, ref).exists()


def _ended(context: WorkerContext, ref: SandboxRef) -> Path:
    return context.paths.sessions / ref.name / f"{ref.episode}world-ended"


# --- its state ------------------------------------------------------------------------------------------


async def take_baseline(world: ManifestEnvironment, episode: str) -> StateSnapshot | None:
    """The state that an agent begins with."""
    return await world.snapshot(f"{episode}{BASELINE}") if world.manifest.is_stateful else None


async def keep_state(
    world: ManifestEnvironment, label: str, episode: str, baseline: StateSnapshot | None, paths: RolloutPaths
) -> tuple[Path | None, list[str]]:
    """Capture the state after a step, with what has changed in it, into the results.

    Returns the directory that is the verifier's evidence, None where there is none, and warnings.
    """
    if not world.manifest.is_stateful:
        return None, []
    snapshot = await world.snapshot(f"{episode}{label}")
    root = paths.environment / "snapshots"
    evidence = paths.state_called(label)
    kept = [(BASELINE, baseline), (label, snapshot)]
    for name, one in kept:
        if one is not None and not await world.fetch(one, root / name, MOST_STATE):
            shutil.rmtree(root / label, ignore_errors=True)
            return None, [f"the state is larger than {MOST_STATE} bytes: it is not kept, nor shown to the verifier"]

    def write() -> None:
        with storage_errors(evidence):
            evidence.mkdir(parents=True, exist_ok=True)
            state = read_state(root / label, rows=MOST_ROWS)
            (evidence / "state.json").write_text(state.model_dump_json() + "\n")
            if baseline is not None:
                diff = diff_snapshots(root / BASELINE, root / label)
                (evidence / "diff.json").write_text(diff.model_dump_json() + "\n")
            # It goes into the sandbox with its modes, for a verifier that may have a user of its own.
            for path in (evidence, *evidence.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o044))

    await asyncio.to_thread(write)
    return evidence, []


async def compare_copy(
    spec: RolloutSpec, world: ManifestEnvironment, observed: Sequence[Observation]
) -> tuple[str, ...]:
    """Return which URLs of a copied world answer otherwise than they did in the world that it is a copy of.

    Args:
        spec: The rollout that begins in the copy.
        world: The copy.
        observed: The answers in the world itself, just before the checkpoint.

    Raises:
        UnprovenStateError: There are any, and the job requires that there are none.
    """
    if not observed:
        return ()
    found = differences(observed, await world.observe())
    if found and spec.run.require_proven_state:
        raise UnprovenStateError(
            found[0],
            key="environment.state.observe",
            remedy="have the service keep this state in its database or in files, and see bench env check",
        )
    return found


async def keep_logs(world: ManifestEnvironment, paths: RolloutPaths) -> list[str]:
    """What the services have printed, into the results. Returns warnings."""
    directory = paths.environment / "logs"
    try:
        logs = await world.logs(tail=MOST_LOG)
    except WorldError as error:
        return [f"the logs of the world could not be collected: {error.message}"]
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in logs.items():
            (directory / f"{name}.log").write_text(text)
    return []
