"""Start, watch and end the world of a rollout, and store its state and logs with the results.

How a world is started, checked, captured and restored is known to the environment plane only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchflow.contracts.environment import Observation, ReadyWorld, StateSnapshot
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.world import StatefulEnvironment
from benchflow.errors import UnprovenStateError, WorldError
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.hosting.hosted import WORLD_SETUP, Hosted
from benchflow.paths import RolloutPaths
from benchflow.planes.environment.exports import describe_differences, prepare_sandbox

MAX_STATE_BYTES = 256 * 1024 * 1024
"""Maximum size in bytes of a snapshot that is fetched from a sandbox into the results."""

MAX_LOG_CHARS = 4 * 1024 * 1024
"""Maximum number of characters of a service's log in the results, from its end."""

POLL_INTERVAL_SEC = 2.0
"""Seconds between two checks of the world while an agent acts in it."""

_ENDED = "world-ended"
"""Mark of a sandbox whose world the engine has ended, after the rollout's namespace."""


def make_entrypoint_env(rollout: Hosted) -> dict[str, str]:
    """Return the secret variables that only the image's entrypoint gets; empty unless the entrypoint is the world."""
    manifest = rollout.manifest
    if manifest is None or not manifest.owns_lifecycle:
        return {}
    return rollout.secrets.forwarded(manifest)


async def prepare_for_world(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
    """Return the specification of a sandbox with the world's additions, and store the setup of the world's helper.

    Args:
        rollout: The rollout.
        wanted: Specification without the world; returned as it is for a task without one. Its image is ready.
        log: File for the output of a build.
    """
    environment, host = rollout.spec.task.environment, rollout.host
    if environment is None:
        return wanted
    wanted, setup = await prepare_sandbox(
        environment,
        wanted,
        rollout.provider,
        task=rollout.spec.task.name,
        paths=host.paths,
        log=log,
    )
    directory = host.paths.sessions / wanted.name
    with raise_storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if setup is not None:
        write_atomic(directory / WORLD_SETUP, setup.model_dump_json().encode())
    return wanted


async def start_world(rollout: Hosted, world: StatefulEnvironment, baseline: StateSnapshot | None) -> ReadyWorld:
    """Start the world unless it runs, wait until it is ready, and return its services, probes and ports.

    Services that started are cached in the host, so that later sandboxes of the same image need no probes for them.

    Args:
        rollout: The rollout, attached to its sandbox.
        world: The rollout's world.
        baseline: In a copy of a sandbox, the state that the agent started with there; None to capture it now.

    Raises:
        ReadinessError: The world is not ready in time.
    """
    environment = rollout.spec.task.environment
    assert environment is not None
    if baseline is not None:
        (await rollout.make_world_context(environment)).inherit_baseline(baseline)
    ready = await world.provision()
    known = {status.name: True for status in ready.services if status.state == "running"}
    rollout.host.installed[(rollout.spec.task.digest, environment.digest)] = known
    return ready


async def watch_world(world: StatefulEnvironment) -> None:
    """Check the world every two seconds, without end.

    Raises:
        ServiceDiedError: A part of the world has ended that should run.
    """
    while True:
        await world.check()
        await asyncio.sleep(POLL_INTERVAL_SEC)


async def end_world(rollout: Hosted, world: StatefulEnvironment) -> None:
    """End the world's processes. The end is marked before, so that a retry does not take the world for broken."""
    rollout.mark(f"{rollout.ref.episode}{_ENDED}")
    await world.teardown()


def has_ended_world(rollout: Hosted) -> bool:
    """Return whether `end_world` was called, in this attempt or an earlier one."""
    return rollout.has_mark(f"{rollout.ref.episode}{_ENDED}")


# --- its state ------------------------------------------------------------------------------------------


async def store_state(
    rollout: Hosted, world: StatefulEnvironment, label: str, baseline: StateSnapshot | None
) -> tuple[Path | None, list[str]]:
    """Capture the world's state and its difference from the baseline, and write both into the results.

    Args:
        rollout: The rollout.
        world: The rollout's world.
        label: Name of the moment, which names the directory.
        baseline: State that the agent started with; None if there is none.

    Returns:
        Directory with the state for the verifier, None for a stateless world or a state that is too large; warnings.
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
        with raise_storage_errors(evidence):
            evidence.mkdir(parents=True, exist_ok=True)
            (evidence / "state.json").write_text(state.model_dump_json() + "\n")
            if found.diff is not None:
                (evidence / "diff.json").write_text(found.diff.model_dump_json() + "\n")
            # It is uploaded with its modes, for a verifier that may run as a user of its own.
            for path in (evidence, *evidence.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o044))

    await asyncio.to_thread(write)
    return evidence, list(found.warnings)


async def compare_copy(
    world: StatefulEnvironment, observed: Sequence[Observation], *, must_be_equal: bool
) -> tuple[str, ...]:
    """Return a sentence for each URL at which a copied world answers differently from the original.

    Args:
        world: World of the copy.
        observed: Answers of the original just before the checkpoint; empty to compare nothing.
        must_be_equal: Whether a difference is an error.

    Raises:
        UnprovenStateError: There is a difference, and `must_be_equal` is set.
    """
    if not observed:
        return ()
    found = describe_differences(observed, await world.observe())
    if found and must_be_equal:
        raise UnprovenStateError(
            found[0],
            key="environment.state.observe",
            remedy="have the service keep this state in its database or in files, and see bench env check",
        )
    return found


async def store_logs(world: StatefulEnvironment, paths: RolloutPaths) -> list[str]:
    """Write the logs of the world's services into the results. Return a warning if they can't be read."""
    directory = paths.environment / "logs"
    try:
        logs = await world.logs(tail=MAX_LOG_CHARS)
    except WorldError as error:
        return [f"the logs of the world could not be collected: {error.message}"]
    with raise_storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in logs.items():
            (directory / f"{name}.log").write_text(text)
    return []
