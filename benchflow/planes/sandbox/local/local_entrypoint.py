"""The image's entrypoint in a local sandbox: a command, run once for each first process of the sandbox.

A restored or forked sandbox has a new first process. When it is started again by its spec, its entrypoint is started
again, with its secrets, which are stored nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.contracts.accelerators import EntrypointProgram
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import SandboxStartError
from benchflow.planes.sandbox.driven.sandbox_records import make_process_id
from benchflow.planes.sandbox.local.local_images import LocalImage
from benchflow.planes.sandbox.local.local_records import Running


def make_entrypoint_program(
    spec: SandboxSpec, image: LocalImage | None, secrets: Mapping[str, str]
) -> EntrypointProgram:
    """Return an image's entrypoint, with `secrets` as its environment. Raise `SandboxStartError` if there is none."""
    argv = (*image.entrypoint, *image.command) if image else ()
    if image is None or not argv:
        raise SandboxStartError(
            f"the image {spec.image.reference} has neither ENTRYPOINT nor CMD, so that nothing starts its world",
            key="image",
            remedy="write what starts the services as ENTRYPOINT or CMD in its Dockerfile, or declare the services",
        )
    cwd = spec.workdir or image.workdir or "/"
    return EntrypointProgram(argv=argv, env=dict(secrets), cwd=cwd, user=image.user or "0")


def make_entrypoint_key(running: Running) -> str:
    """Return the key of the entrypoint's command, which names the first process of the running sandbox."""
    return f"benchflow/entrypoint/{running.pid}-{running.started}"


def find_entrypoint_group(running: Running | None) -> set[str]:
    """Return the id of the entrypoint's command, which is its cgroup's name; empty if nothing runs."""
    return {make_process_id(make_entrypoint_key(running))} if running is not None else set()
