"""An environment by its reference: the sandbox that it needs, and its object in any process."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.world import Environment
from benchflow.paths import StatePaths
from benchflow.planes.environment.context import WorldContext
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.planes.environment.environment_code import code_of
from benchflow.planes.environment.interpreter import Kind
from benchflow.planes.environment.outfit import Outfit, fit_out_world, with_ports


def check_environment(ref: EnvironmentRef, job: str) -> None:
    """Raise `ConfigError` for an environment in code that this host can't import. job: its id."""
    code_of(ref, job)


async def prepare_sandbox(
    ref: EnvironmentRef,
    wanted: SandboxSpec,
    provider: SandboxProvider,
    *,
    task: str,
    paths: StatePaths | None = None,
    known: MutableMapping[tuple[str, str], Kind] | None = None,
    log: Path | None = None,
) -> tuple[SandboxSpec, Outfit | None]:
    """Return the sandbox to start for a world, and how it is prepared: None for an environment in code.

    Args:
        ref: The environment.
        wanted: The sandbox without it, with its image ready.
        provider: The sandbox's.
        task: Its id, for the world.
        paths: The state directory.
        known: Interpreters in images, by provider and identity; is added to.
        log: File for what a build prints.
    """
    if ref.code is not None:
        return with_ports(ref.manifest, wanted, task), None
    return await fit_out_world(ref.manifest, wanted, provider, task=task, paths=paths, known=known, log=log)


def open_environment(
    ref: EnvironmentRef,
    context: WorldContext,
    provider: SandboxProvider,
    outfit: Outfit | None,
    *,
    job: str,
    foreign: tuple[str, ...] = (),
    probed: Mapping[str, bool] | None = None,
) -> Environment:
    """Return the environment of a sandbox that was prepared for it.

    Args:
        ref: The environment.
        context: Its sandbox, and what else it is given.
        provider: The sandbox's.
        outfit: As `prepare_sandbox` has returned it.
        job: Id of the job.
        foreign: Directories of the sandbox whose files are not the world's (mounts).
        probed: Of services whose `--help` probe is known for this image, whether it has succeeded.
    """
    found = code_of(ref, job)
    if found is not None:
        return found(context)
    assert outfit is not None
    return ManifestEnvironment(
        ref.manifest,
        context,
        provider,
        keeper=outfit.keeper(context.sandbox),
        source=ref.source,
        foreign=foreign,
        probed=probed,
    )
