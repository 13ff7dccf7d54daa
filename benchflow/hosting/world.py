"""The world of a rollout, where it has one: what its sandbox is started with, its life, its state.

How a world is started, watched, captured and put back is the environment plane's to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchflow.contracts.environment import Observation, ReadyWorld, StateSnapshot
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.world import Environment
from benchflow.errors import UnprovenStateError, WorldError
from benchflow.hosting.hosted import WORLD_SETUP, Hosted
from benchflow.paths import RolloutPaths
from benchflow.planes.environment import differences, prepare_sandbox
from benchflow.store import storage_errors, write_atomic

MAX_STATE_BYTES = 256 * 1024 * 1024
"""Bytes of a snapshot that are fetched from a sandbox, to be read and retained with the results."""

MAX_LOG_CHARS = 4 * 1024 * 1024
"""Characters of a service's log that are retained with the results."""

POLL_INTERVAL_SEC = 2.0
"""Seconds between two checks that the world still lives, while an agent acts in it."""

_ENDED = "world-ended"


def entrypoint_env(rollout: Hosted) -> dict[str, str]:
    """Return the variables that the image's entrypoint alone is given."""
    manifest = rollout.manifest
    if manifest is None or not manifest.owns_lifecycle:
        return {}
    return rollout.secrets.forwarded(manifest)


async def prepare_for_world(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
    """Return what a sandbox must be started with for its world, and record how that is. wanted: without it."""
    environment, host = rollout.spec.task.environment, rollout.host
    if environment is None:
        return wanted
    wanted, setup = await prepare_sandbox(
        environment,
        wanted,
        rollout.provider,
        task=rollout.spec.task.name,
        paths=host.paths,
        known=host.interpreters,
        log=log,
    )
    directory = host.paths.sessions / wanted.name
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if setup is not None:
        write_atomic(directory / WORLD_SETUP, setup.model_dump_json().encode())
    return wanted


async def start_world(rollout: Hosted, world: Environment, baseline: StateSnapshot | None) -> ReadyWorld:
    """Provision the world, and return what is known of it. What is learned of its image spares later ones the probes.

    Args:
        rollout: Whose world it is.
        world: The environment.
        baseline: State that the agent began with, in a copy of its sandbox.
    """
    environment = rollout.spec.task.environment
    assert environment is not None
    if baseline is not None:
        (await rollout.world_context(environment)).inherit_baseline(baseline)
    ready = await world.provision()
    known = {status.name: True for status in ready.services if status.state == "running"}
    rollout.host.installed[(rollout.spec.task.digest, environment.digest)] = known
    return ready


async def watch_world(world: Environment) -> None:
    """Raise `ServiceDiedError` as soon as the world breaks; never returns."""
    while True:
        await world.check()
        await asyncio.sleep(POLL_INTERVAL_SEC)


async def end_world(rollout: Hosted, world: Environment) -> None:
    """End a world that is not kept alive. It is marked before, so that a further attempt does not find it dead."""
    rollout.mark(f"{rollout.ref.episode}{_ENDED}")
    await world.teardown()


def has_ended_world(rollout: Hosted) -> bool:
    """Return whether the engine has ended the world itself, or was about to."""
    return rollout.has_mark(f"{rollout.ref.episode}{_ENDED}")


# --- its state ------------------------------------------------------------------------------------------


async def keep_state(
    rollout: Hosted, world: Environment, label: str, baseline: StateSnapshot | None
) -> tuple[Path | None, list[str]]:
    """Capture the state after a step, with what has changed in it, into the results.

    Returns:
        The directory that is the verifier's evidence, None where there is none, and warnings.
    """
    if not world.is_stateful:
        return None, []
    paths = rollout.paths
    evidence = paths.state_called(label)
    found = await world.collect_evidence(label, baseline, paths.environment / "snapshots", MAX_STATE_BYTES)
    state = found.state
    if state is None:
        return None, list(found.warnings)

    def write() -> None:
        with storage_errors(evidence):
            evidence.mkdir(parents=True, exist_ok=True)
            (evidence / "state.json").write_text(state.model_dump_json() + "\n")
            if found.diff is not None:
                (evidence / "diff.json").write_text(found.diff.model_dump_json() + "\n")
            # It goes into the sandbox with its modes, for a verifier that may have a user of its own.
            for path in (evidence, *evidence.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o044))

    await asyncio.to_thread(write)
    return evidence, list(found.warnings)


async def compare_copy(world: Environment, observed: Sequence[Observation], *, must_be_equal: bool) -> tuple[str, ...]:
    """Return which URLs of a copied world answer otherwise than they did in the world that it is a copy of.

    Args:
        world: The copy.
        observed: The answers in the world itself, just before the checkpoint.
        must_be_equal: Whether a difference is an error.

    Raises:
        UnprovenStateError: There are any, and there must be none.
    """
    if not observed:
        return ()
    found = differences(observed, await world.observe())
    if found and must_be_equal:
        raise UnprovenStateError(
            found[0],
            key="environment.state.observe",
            remedy="have the service keep this state in its database or in files, and see bench env check",
        )
    return found


async def keep_logs(world: Environment, paths: RolloutPaths) -> list[str]:
    """Write the logs of the services into the results. Returns warnings."""
    directory = paths.environment / "logs"
    try:
        logs = await world.logs(tail=MAX_LOG_CHARS)
    except WorldError as error:
        return [f"the logs of the world could not be collected: {error.message}"]
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in logs.items():
            (directory / f"{name}.log").write_text(text)
    return []
