"""Restores: a container is replaced by a successor with other files, under the same name and handle.

The successor is created under a temporary name, so that problems with the image show before anything is lost. The old
container is the sandbox as long as it runs; from its end on, the successor is. The next process that looks for the
sandbox sees which, and finishes a restore whose process has died.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from benchflow.contracts.images import ImageRef
from benchflow.errors import BenchFlowError, SandboxError, SandboxLostError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.docker.container_config import ENTRYPOINT_LABEL, explain_failed_start, read_label
from benchflow.planes.sandbox.docker.container_copies import HANDLE_LABEL, create_successor, read_handle
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.starter import Starter

SUFFIX = ".next"
"""Suffix of a successor's name until it has replaced the old container."""

_ORPHAN_SEC = 60.0
"""Age in seconds beyond which a successor counts as an orphan while the old container runs."""


class DockerRestores:
    """The restores of one daemon's containers."""

    def __init__(
        self, engine: DockerDaemon, starter: Starter, remove: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        """Make it.

        Args:
            engine: The daemon.
            starter: Starts containers.
            remove: Removes a container, given its `inspect` data.
        """
        self._engine = engine
        self._starter = starter
        self._remove = remove

    async def find(self, name: str, handle: str | None = None) -> dict[str, Any] | None:
        """Return a sandbox's container, running or not, as `inspect` data; None if there is none.

        A restore that was interrupted after the old container's end is finished first.

        Args:
            name: Name of the sandbox.
            handle: Handle that the container must have; None for any.
        """
        found = await self._find_with_handle(name, handle)
        if found is not None and found["State"]["Running"]:
            return found
        if found is None or not _is_successor(found):
            coming = await self._inspect(name + SUFFIX)
            if coming is None or handle not in (None, read_handle(coming)):
                return found
        async with hold_lock_async(_lock(name)):
            return await self._finish(name, handle)

    async def restore(self, name: str, handle: str, image: ImageRef) -> dict[str, Any]:
        """Replace a sandbox's container by one that starts from an image, and return the new one's `inspect` data.

        Args:
            name: Name of the sandbox.
            handle: Handle of the sandbox.
            image: Image to start from.

        Raises:
            SandboxLostError: There is no such sandbox, or it was removed meanwhile.
            SandboxStartError: The image is missing, or the new container does not come up.
            SandboxError: The old container could not be ended.
        """
        async with hold_lock_async(_lock(name)):
            old = await self._finish(name, handle)
            if old is None:
                raise SandboxLostError(f"the sandbox {name} is gone")
            if (left := await self._inspect(name + SUFFIX)) is not None:
                await self._remove(left)
            await create_successor(self._engine, old, image.reference, name + SUFFIX)
            # Killed last: until here, an error leaves the sandbox as it was.
            with contextlib.suppress(SandboxLostError):
                await self._engine.call(lambda client: client.kill(old["Id"]))
            new = await self._finish(name, handle)
        if new is None:
            raise SandboxLostError(f"the sandbox {name} was removed while it was restored")
        if new["Id"] == old["Id"]:
            raise SandboxError(f"the sandbox {name} cannot be restored: its processes do not end")
        return new

    async def tidy(self, name: str) -> None:
        """Remove a successor that is over a minute old while the old container runs, unless a restore is under way."""
        async with hold_lock_async(_lock(name), wait=False) as held:
            if not held:
                return
            old, coming = await self._inspect(name), await self._inspect(name + SUFFIX)
            if old is not None and coming is not None and old["State"]["Running"]:
                # A restore that has just died may have killed the old container, whose end is still to come.
                made = datetime.fromisoformat(coming["Created"][:19] + "+00:00")
                if time.time() - made.timestamp() > _ORPHAN_SEC:
                    await self._remove(coming)

    # --- under the lock ------------------------------------------------------------------------------

    async def _finish(self, name: str, handle: str | None) -> dict[str, Any] | None:
        """Return a sandbox's container, after finishing an interrupted restore. The caller holds the lock."""
        old, coming = await self._find_with_handle(name, handle), await self._inspect(name + SUFFIX)
        if old is not None and old["State"]["Running"]:
            return old
        if old is not None and _is_successor(old) and old["State"]["Status"] == "created":
            return await self._start(old, name)
        if coming is None or handle not in (None, read_handle(coming)):
            return old
        if old is not None:
            with contextlib.suppress(SandboxLostError):
                await self._remove(old)
        await self._engine.call(lambda client: client.rename(coming["Id"], name))
        return await self._start(coming, name)

    async def _start(self, container: dict[str, Any], name: str) -> dict[str, Any]:
        """Start a successor and return its `inspect` data; remove it and raise if it does not come up."""
        try:
            await self._starter.start(container["Id"])
        except BenchFlowError as error:
            form = read_label(container, ENTRYPOINT_LABEL, "wraps")
            wrong = await explain_failed_start(self._engine, container["Id"], error, form)
            await self._remove(container)
            raise wrong from error
        started = await self._inspect(container["Id"])
        if started is None:
            raise SandboxLostError(f"the sandbox {name} was removed while it was restored")
        return started

    async def _find_with_handle(self, name: str, handle: str | None) -> dict[str, Any] | None:
        """Return the container with a name as `inspect` data; None if there is none, or if it has another handle."""
        found = await self._inspect(name)
        return found if found is None or handle in (None, read_handle(found)) else None

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._engine.call(lambda client: client.inspect_container(name))
        except SandboxLostError:
            return None
        return found


def _is_successor(container: dict[str, Any]) -> bool:
    return bool(read_label(container, HANDLE_LABEL))


def _lock(name: str) -> Path:
    return find_state_dir() / "locks" / f"restore-{name}.lock"


def forget_restores(name: str) -> None:
    """Remove the lock file of a removed sandbox's restores."""
    _lock(name).unlink(missing_ok=True)
