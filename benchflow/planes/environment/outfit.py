"""What a sandbox must be started with for a manifest's world: its ports and entrypoint, and what the helper needs."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.environment import Manifest
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import ensure_runtime, image_with_toolboxes, libc_of
from benchflow.planes.environment.interpreter import Kind, interpreter_of, program_of
from benchflow.planes.environment.keeper import Keeper


class Outfit(Model):
    """How a sandbox was made fit for its world: what runs the engine's helper in it, and how that is started."""

    kind: Kind
    program: tuple[str, ...]

    def keeper(self, sandbox: Sandbox) -> Keeper:
        return Keeper(sandbox, self.program, self.kind)


async def fit_out_world(
    manifest: Manifest,
    wanted: SandboxSpec,
    provider: SandboxProvider,
    *,
    task: str,
    paths: StatePaths | None = None,
    known: MutableMapping[tuple[str, str], Kind] | None = None,
    log: Path | None = None,
) -> tuple[SandboxSpec, Outfit]:
    """The sandbox to start, and how the helper is run in it. wanted: its image is ready.

    task: its id, for the world. known: what runs the helper in an image, by provider and identity; is added to.
    """
    image = (provider.name, wanted.image.identity)
    kind = known.get(image) if known is not None else None
    if kind is None:
        kind = await interpreter_of(provider, wanted.image, paths, labels=wanted.labels)
        if known is not None:
            known[image] = kind
    runtime = None
    if kind == "node":
        runtime = await ensure_runtime(paths, await libc_of(provider, wanted.image, paths, labels=wanted.labels))
        if provider.capabilities().mounts:
            wanted = wanted.model_copy(update={"mounts": (*wanted.mounts, runtime.mount)})
        else:
            fitted = await image_with_toolboxes(provider, wanted.image, [runtime], log=log)
            wanted = wanted.model_copy(update={"image": fitted})
    fitted_out = with_ports(manifest, wanted, task).model_copy(
        update={"entrypoint": ("first" if manifest.keep_alive else "below") if manifest.owns_lifecycle else "none"}
    )
    return fitted_out, Outfit(kind=kind, program=program_of(kind, runtime))


def with_ports(manifest: Manifest, wanted: SandboxSpec, task: str) -> SandboxSpec:
    """Return a sandbox whose world learns its task, and is reached at its ports."""
    ports = {*manifest.ports, *(service.port for service in manifest.services)}
    return wanted.model_copy(
        update={
            "env": wanted.env | manifest.task_env(task, "entrypoint"),
            # Without a network there is nowhere to reach them from.
            "ports": tuple(sorted(ports)) if wanted.network_mode != "no-network" else (),
        }
    )
