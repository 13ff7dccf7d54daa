"""Files in and out of a local sandbox, by the helper; archives are judged here, as for every provider."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from benchflow.confined import MAX_DEPTH
from benchflow.errors import SandboxError, UnsafePathError
from benchflow.planes.sandbox.archives import DOWNLOAD_LIMIT, too_large
from benchflow.planes.sandbox.cancellation import StoppedError, run_stoppable
from benchflow.planes.sandbox.local.client import Helper, memory_file

_CHUNK = 1024 * 1024


class Files:
    """The files of one sandbox. init: pid and start time of its first process, asked for anew each time."""

    def __init__(self, helper: Helper, scratch: Path, init: Callable[[], tuple[int, int]]) -> None:
        self._helper = helper
        self._scratch = scratch
        self._init = init

    async def read(self, path: str, limit: int) -> bytes:
        """Return the content of a regular file of at most so many bytes."""
        memory = memory_file()
        try:
            await self._call("read", path, [memory], limit=limit)
            return await asyncio.to_thread(os.pread, memory, os.fstat(memory).st_size, 0)
        finally:
            os.close(memory)

    async def write(self, path: str, content: bytes, mode: int, user: str) -> None:
        """Write a file under a name that held another one, a link, or nothing."""
        memory = memory_file(content)
        try:
            await self._call("write", path, [memory], mode=mode, user=user)
        finally:
            os.close(memory)

    async def unpack(self, directory: str, archive: IO[bytes], user: str | None) -> None:
        """Unpack an archive, all of it owned by a user, or, for None, as it says itself."""
        await self._call("unpack", directory, [archive.fileno()], user=user)

    async def pack(self, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file, or a directory's content, on as an archive. Return whether it is a file; None for nothing."""
        with self._unnamed() as packed:
            answer = await self._call("pack", path, [packed.fileno()], limit=DOWNLOAD_LIMIT, depth=MAX_DEPTH)
            if "missing" in answer:
                return None
            if found := answer.get("too_large"):
                raise too_large(path, found["size"], found["largest"])
            if "too_deep" in answer:
                raise UnsafePathError(
                    f"is nested deeper than {MAX_DEPTH} directories: it is not downloaded",
                    file=path,
                    remedy="let the agent leave no such directory there",
                )
            packed.seek(0)

            def pass_on(stop: threading.Event) -> None:
                while piece := packed.read(_CHUNK):
                    if stop.is_set():
                        raise StoppedError
                    take(piece)

            await run_stoppable(pass_on)
            return bool(answer["single"])

    def _unnamed(self) -> Any:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._scratch)

    async def _call(self, operation: str, path: str, fds: list[int], **more: Any) -> dict[str, Any]:
        pid, started = self._init()
        request = {"pid": pid, "started": started, "path": path, **more}
        try:
            return await self._helper.call(operation, request, fds)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise FileNotFoundError(f"{path}: no such file in the sandbox") from error
            if error.errno == errno.EFBIG:
                remedy = "download it instead" if operation == "read" else "leave out what is not needed"
                raise SandboxError(f"is larger than {more['limit']} bytes", file=path, remedy=remedy) from error
            raise SandboxError(f"cannot be {_DONE[operation]}: {error.strerror}", file=path) from error


_DONE = {"read": "read", "write": "written", "unpack": "written", "pack": "read"}
