"""Environments by reference, a manifest or a class alike: check, preparation of the sandbox, construction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.world import StatefulEnvironment
from benchflow.paths import StatePaths
from benchflow.planes.environment.environment_code import load_code
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.planes.environment.world_context import WorldContext
from benchflow.planes.environment.world_setup import WorldSetup, add_ports, prepare_world


def check_environment(ref: EnvironmentRef, job: str) -> None:
    """Raise `ConfigError` for an environment in code that this host cannot import.

    Args:
        ref: Reference to the environment.
        job: Id of the job, for which the class is imported once.
    """
    load_code(ref, job)


async def prepare_sandbox(
    ref: EnvironmentRef,
    wanted: SandboxSpec,
    provider: SandboxProvider,
    *,
    task: str,
    paths: StatePaths | None = None,
    log: Path | None = None,
) -> tuple[SandboxSpec, WorldSetup | None]:
    """Return the specification of a world's sandbox, and the setup of its helper; None for an environment in code.

    Args:
        ref: Reference to the environment.
        wanted: Specification of the sandbox without the world's additions. Its image is ready.
        provider: Provider of the sandbox.
        task: Id of the task, which the world is told.
        paths: State directory; None for the default one.
        log: File for the output of a build.
    """
    if ref.code is not None:
        return add_ports(ref.manifest, wanted, task), None
    return await prepare_world(ref.manifest, wanted, provider, task=task, paths=paths, log=log)


def open_environment(
    ref: EnvironmentRef,
    context: WorldContext,
    provider: SandboxProvider,
    setup: WorldSetup | None,
    *,
    job: str,
    foreign: tuple[str, ...] = (),
    probed: Mapping[str, bool] | None = None,
) -> StatefulEnvironment:
    """Construct the environment of a sandbox that was prepared for it.

    Args:
        ref: Reference to the environment.
        context: Context of the environment, with its sandbox.
        provider: Provider of the sandbox.
        setup: Setup that `prepare_sandbox` returned.
        job: Id of the job.
        foreign: Directories of the sandbox whose files are not the world's (mounts).
        probed: Known results of `--help` probes in this image, by the services' names: whether each succeeded.
    """
    found = load_code(ref, job)
    if found is not None:
        return found(context)
    assert setup is not None
    return ManifestEnvironment(
        ref.manifest,
        context,
        provider,
        helper=setup.make_helper(context.sandbox),
        source=ref.source,
        foreign=foreign,
        probed=probed,
    )
