"""Additions of a manifest's world to its sandbox: ports, entrypoint, and a Python for the engine's helper."""

from __future__ import annotations

from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.environment import Manifest
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import PYTHON, build_toolbox_image, ensure_python
from benchflow.planes.environment.helper_interpreter import has_python
from benchflow.planes.environment.world_helper import WorldHelper


class WorldSetup(Model):
    """Setup of the engine's helper in a sandbox: the Python that runs it."""

    python: str
    """Its name or path in the sandbox."""

    def make_helper(self, sandbox: Sandbox) -> WorldHelper:
        """Return a client of the helper in a sandbox that was prepared so."""
        return WorldHelper(sandbox, self.python)


async def prepare_world(
    manifest: Manifest,
    wanted: SandboxSpec,
    provider: SandboxProvider,
    *,
    task: str,
    paths: StatePaths | None = None,
    log: Path | None = None,
) -> tuple[SandboxSpec, WorldSetup]:
    """Return the specification of the sandbox with the world's additions, and the setup of the helper.

    An image without a usable Python gets one: as a mount, or in an image that is built if the provider has no mounts.

    Args:
        manifest: The world.
        wanted: Specification of the sandbox without the additions. Its image is ready.
        provider: Provider of the sandbox.
        task: Id of the task, which the world is told.
        paths: State directory; None for the default one.
        log: File for the output of a build.

    Raises:
        SandboxError: The image does not start.
        AgentInstallError: The image has no usable Python, and this host's can't be copied.
    """
    python = "python3"
    if not await has_python(provider, wanted.image, paths, labels=wanted.labels):
        python, mount = PYTHON, await ensure_python(paths)
        if provider.capabilities().mounts:
            wanted = wanted.model_copy(update={"mounts": (*wanted.mounts, mount)})
        else:
            image = await build_toolbox_image(provider, wanted.image, [mount], log=log)
            wanted = wanted.model_copy(update={"image": image})
    fitted_out = add_ports(manifest, wanted, task).model_copy(
        update={"entrypoint": ("first" if manifest.keep_alive else "below") if manifest.owns_lifecycle else "none"}
    )
    return fitted_out, WorldSetup(python=python)


def add_ports(manifest: Manifest, wanted: SandboxSpec, task: str) -> SandboxSpec:
    """Return the specification with the task's id in the entrypoint's environment, and with the world's ports."""
    ports = {*manifest.ports, *(service.port for service in manifest.services)}
    return wanted.model_copy(
        update={
            "env": wanted.env | manifest.task_env(task, "entrypoint"),
            # Without a network no port can be exposed.
            "ports": tuple(sorted(ports)) if wanted.network_mode != "no-network" else (),
        }
    )
