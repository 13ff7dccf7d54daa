"""Going back: a container gives its place to another one that begins with other files.

The successor is made under a name of its own, so that whatever is wrong with the image is found first. While the old
container runs, it is the sandbox; from when it doesn't, its successor is. Whoever looks for the sandbox next sees
which, and finishes what a process that died has begun.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from benchflow.contracts.images import ImageRef
from benchflow.errors import BenchFlowError, SandboxError, SandboxLostError
from benchflow.paths import state_dir
from benchflow.planes.sandbox.docker.copies import HANDLE_LABEL, create_successor, handle_of
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.launch import ENTRYPOINT_LABEL, start_error
from benchflow.planes.sandbox.docker.starter import Starter
from benchflow.planes.sandbox.records import file_lock

SUFFIX = ".next"
"""What a successor's name ends with until it has the place."""

_LEFT_OVER_SEC = 60.0
"""After this time a container that was being removed when its remover died is removed."""


class Restores:
    """The containers of one daemon that give and take places. remove: removes a container by its description."""

    def __init__(self, engine: Engine, starter: Starter, remove: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self._engine = engine
        self._starter = starter
        self._remove = remove

    async def find(self, name: str, handle: str | None = None) -> dict[str, Any] | None:
        """The container of a sandbox, running or not; one that is about to take its place does so first."""
        found = await self._look(name, handle)
        if found is not None and found["State"]["Running"]:
            return found
        if found is None or not _is_successor(found):
            coming = await self._inspect(name + SUFFIX)
            if coming is None or handle not in (None, handle_of(coming)):
                return found
        async with self._turn(name):
            return await self._finish(name, handle)

    async def restore(self, name: str, handle: str, image: ImageRef) -> dict[str, Any]:
        """The container that is in the place of another, begun from the image."""
        async with self._turn(name):
            old = await self._finish(name, handle)
            if old is None:
                raise SandboxLostError(f"the sandbox {name} is gone")
            if (left := await self._inspect(name + SUFFIX)) is not None:
                await self._remove(left)
            await create_successor(self._engine, old, image.reference, name + SUFFIX)
            # Not before all is ready for what comes after it.
            with contextlib.suppress(SandboxLostError):
                await self._engine.call(lambda client: client.kill(old["Id"]))
            new = await self._finish(name, handle)
        if new is None:
            raise SandboxLostError(f"the sandbox {name} was removed while it was restored")
        if new["Id"] == old["Id"]:
            raise SandboxError(f"the sandbox {name} cannot be restored: its processes do not end")
        return new

    async def tidy(self, name: str) -> None:
        """Remove the successor of a sandbox that never came to its place."""
        async with file_lock(_lock(name), wait=False) as held:
            if held and await self._is_left_over(name):
                left = await self._inspect(name + SUFFIX)
                if left is not None:
                    await self._remove(left)

    async def _is_left_over(self, name: str) -> bool:
        old, coming = await self._inspect(name), await self._inspect(name + SUFFIX)
        if old is None or coming is None or not old["State"]["Running"]:
            return False
        # The end of the old one may be under way still.
        made = datetime.fromisoformat(coming["Created"][:19] + "+00:00")
        return time.time() - made.timestamp() > _LEFT_OVER_SEC

    # --- one turn ------------------------------------------------------------------------------------

    async def _finish(self, name: str, handle: str | None) -> dict[str, Any] | None:
        """The container of a sandbox, after what must be done for it to be that. The turn is held."""
        old, coming = await self._look(name, handle), await self._inspect(name + SUFFIX)
        if old is not None and old["State"]["Running"]:
            return old
        if old is not None and _is_successor(old) and old["State"]["Status"] == "created":
            return await self._begin(old, name)
        if coming is None or handle not in (None, handle_of(coming)):
            return old
        if old is not None:
            with contextlib.suppress(SandboxLostError):
                await self._remove(old)
        await self._engine.call(lambda client: client.rename(coming["Id"], name))
        return await self._begin(coming, name)

    async def _begin(self, container: dict[str, Any], name: str) -> dict[str, Any]:
        try:
            await self._starter.start(container["Id"])
        except BenchFlowError as error:
            form = (container["Config"]["Labels"] or {}).get(ENTRYPOINT_LABEL, "wraps")
            wrong = await start_error(self._engine, container["Id"], error, form)
            await self._remove(container)
            raise wrong from error
        begun = await self._inspect(container["Id"])
        if begun is None:
            raise SandboxLostError(f"the sandbox {name} was removed while it was restored")
        return begun

    async def _look(self, name: str, handle: str | None) -> dict[str, Any] | None:
        """The container of a name; with a handle, only if it is the sandbox of that."""
        found = await self._inspect(name)
        return found if found is None or handle in (None, handle_of(found)) else None

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._engine.call(lambda client: client.inspect_container(name))
        except SandboxLostError:
            return None
        return found

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        async with file_lock(_lock(name)):
            yield


def _is_successor(container: dict[str, Any]) -> bool:
    return HANDLE_LABEL in (container["Config"]["Labels"] or {})


def _lock(name: str) -> Path:
    return state_dir() / "locks" / f"restore-{name}.lock"


def forget_restores(name: str) -> None:
    _lock(name).unlink(missing_ok=True)
