"""The image's own entrypoint in a local sandbox: a command that runs once below each first process.

A sandbox that was restored, or forked, has another first process: whoever starts it again by its specification starts
the entrypoint again, with its secrets, which are kept nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.contracts.accelerators import EntrypointProgram
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import SandboxStartError
from benchflow.planes.sandbox.driven.records import process_id_of
from benchflow.planes.sandbox.local.images import Image
from benchflow.planes.sandbox.local.records import Running


def program_of(spec: SandboxSpec, image: Image | None, secrets: Mapping[str, str]) -> EntrypointProgram:
    """Return what an image runs by itself. Raises `SandboxStartError` where there is nothing."""
    argv = (*image.entrypoint, *image.command) if image else ()
    if image is None or not argv:
        raise SandboxStartError(
            f"the image {spec.image.reference} has neither ENTRYPOINT nor CMD, so that nothing starts its world",
            key="image",
            remedy="write what starts the services as ENTRYPOINT or CMD in its Dockerfile, or declare the services",
        )
    cwd = spec.workdir or image.workdir or "/"
    return EntrypointProgram(argv=argv, env=dict(secrets), cwd=cwd, user=image.user or "0")


def key_of(running: Running) -> str:
    """Return the key of the command that the entrypoint of a running sandbox is."""
    return f"benchflow/entrypoint/{running.pid}-{running.started}"


def group_of(running: Running | None) -> set[str]:
    """Return the control group of all that the entrypoint started, by its name in the sandbox's."""
    return {process_id_of(key_of(running))} if running is not None else set()
