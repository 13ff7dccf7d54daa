"""Forks: containers that start with the files of another one, all as of one moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchflow.errors import BenchFlowError, SandboxStartError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.docker.captures import Captures
from benchflow.planes.sandbox.docker.container_config import ENTRYPOINT_LABEL, explain_failed_start, read_label
from benchflow.planes.sandbox.docker.container_copies import create_child
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.docker_networks import STACK_LABEL
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.docker.translation import ConflictError


class DockerForks:
    """Forks of the containers of one daemon."""

    def __init__(
        self, engine: DockerDaemon, starter: Starter, captures: Captures, remove: Callable[[str], Awaitable[None]]
    ) -> None:
        """Make it.

        Args:
            engine: The daemon.
            starter: Starts containers.
            captures: The daemon's captures.
            remove: Removes the container with a name; missing is success.
        """
        self._engine = engine
        self._starter = starter
        self._captures = captures
        self._remove = remove

    async def fork(self, parent: dict[str, Any], names: Sequence[str]) -> list[str]:
        """Start one container per name with the parent's files, and return their ids in the order of the names.

        If containers of all these names run, they are returned: an earlier caller may have died after it made them. If
        some are missing, all are made anew, since all must be of one moment.

        Args:
            parent: `inspect` data of the running parent.
            names: Names of the new containers.

        Raises:
            SandboxStartError: A name is taken by another stack's container, or a container does not come up.
            UnsupportedFeatureError: The parent's image declares a VOLUME.
        """
        lock = find_state_dir() / "locks" / f"fork-{hashlib.sha256('/'.join(names).encode()).hexdigest()[:16]}.lock"
        async with hold_lock_async(lock):
            found = await self._find(parent, names)
            if all(name in found and found[name]["State"] == "running" for name in names):
                children = [str(found[name]["Id"]) for name in names]
            else:
                await asyncio.gather(*(self._remove(name) for name in found))
                children = await self._fork(parent, names)
            lock.unlink(missing_ok=True)
        return children

    async def _find(self, parent: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return existing containers by name, as list rows. Raises `SandboxStartError` if another stack has one."""
        every = {"name": [f"^/{name}$" for name in names]}
        rows = await self._engine.call(lambda client: client.containers(all=True, filters=every)) if names else []
        found = {row["Names"][0].lstrip("/"): row for row in rows if row["Names"]}
        stack = read_label(parent, STACK_LABEL)
        for name, row in found.items():
            if row["Labels"].get(STACK_LABEL, "") != stack:
                raise SandboxStartError(
                    f"a container named {name} exists and does not belong to this stack",
                    remedy=f"remove it (`docker rm -f {name}`) or choose another job name",
                )
        return {name: row for name, row in found.items() if name in names}

    async def _fork(self, parent: dict[str, Any], names: Sequence[str]) -> list[str]:
        """Capture the parent and start a container per name from that; remove all of them if one fails."""
        image = await self._captures.take_fork(parent)
        try:
            made = await asyncio.gather(*(self._create(parent, image, name) for name in names))
            await asyncio.gather(*(self._start(parent, child) for child in made))
        except BaseException:
            await asyncio.gather(*(self._remove(name) for name in names), return_exceptions=True)
            await self._captures.release(image)
            raise
        return list(made)

    async def _create(self, parent: dict[str, Any], image: str, name: str) -> str:
        try:
            return await create_child(self._engine, parent, image, name)
        except ConflictError as error:
            raise SandboxStartError(f"the name {name} is taken: {error.message}") from error

    async def _start(self, parent: dict[str, Any], child: str) -> None:
        try:
            await self._starter.start(child)
        except BenchFlowError as error:
            form = read_label(parent, ENTRYPOINT_LABEL, "wraps")
            raise await explain_failed_start(self._engine, child, error, form) from error
