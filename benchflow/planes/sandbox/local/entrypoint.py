"""The image's own entrypoint in a local sandbox: a command that runs once below each first process.

A sandbox that was restored, or forked, has another first process: whoever starts it again by its specification starts
the entrypoint again, with its secrets, which are kept nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.contracts.sandbox import EntrypointState, SandboxSpec
from benchflow.errors import SandboxError, SandboxStartError
from benchflow.planes.sandbox.local.executions import Command, Executions, leaf_of
from benchflow.planes.sandbox.local.images import Image
from benchflow.planes.sandbox.local.records import Running

LOG_BYTES = 64 * 1024


def entrypoint_of(spec: SandboxSpec, image: Image | None, told: Mapping[str, str]) -> Command:
    """The command that an image runs by itself. told: its secrets. Raises `SandboxStartError` where there is none."""
    argv = (*image.entrypoint, *image.command) if image else ()
    if image is None or not argv:
        raise SandboxStartError(
            f"the image {spec.image.reference} has neither ENTRYPOINT nor CMD, so that nothing starts its world",
            key="image",
            remedy="write what starts the services as ENTRYPOINT or CMD in its Dockerfile, or declare the services",
        )
    env = image.env | spec.env | dict(told)
    return Command(argv, env, spec.workdir or image.workdir or "/", image.user or "0", together=True)


class Entrypoint:
    """That of one running sandbox."""

    def __init__(self, executions: Executions, running: Running) -> None:
        self._executions = executions
        self._key = key_of(running)

    async def begin(self, command: Command) -> None:
        """Start it unless it was, and return without waiting for its end."""
        await self._executions.begin(self._key, command)

    async def state(self) -> EntrypointState:
        running, code, log = await self._executions.look(self._key, LOG_BYTES)
        return EntrypointState(running=running, exit_code=code, log=log)

    async def end(self) -> None:
        """Kill it with all it started."""
        await self._executions.kill_once(self._key)


def require_entrypoint(spec: SandboxSpec) -> None:
    """Raises `SandboxError` for a sandbox that was not asked to run its entrypoint."""
    if not spec.runs_entrypoint:
        raise SandboxError(f"the sandbox {spec.name} does not run its image's entrypoint", key="entrypoint")


def key_of(running: Running) -> str:
    return f"benchflow/entrypoint/{running.pid}-{running.started}"


def group_of(running: Running | None) -> set[str]:
    """The control group of all that the entrypoint started, by its name in the sandbox's."""
    return {leaf_of(key_of(running))} if running is not None else set()
