"""Files in and out of a local sandbox, by the helper; archives are judged here, as for every provider."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchflow.confined import MAX_DEPTH
from benchflow.errors import SandboxError, UnsafePathError
from benchflow.planes.sandbox.archives import DOWNLOAD_LIMIT, pack, too_large, unpack
from benchflow.planes.sandbox.cancellation import run_stoppable
from benchflow.planes.sandbox.local.client import Helper, memory_file

READ_LIMIT = 64 * 1024 * 1024


class Files:
    """The files of one sandbox. init: pid and start time of its first process, asked for anew each time."""

    def __init__(self, helper: Helper, scratch: Path, init: Callable[[], tuple[int, int]]) -> None:
        self._helper = helper
        self._scratch = scratch
        self._init = init

    async def read(self, path: str) -> bytes:
        """The bytes of a regular file of at most `READ_LIMIT`."""
        memory = memory_file()
        try:
            await self._call("read", path, [memory], limit=READ_LIMIT)
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

    async def upload(self, source: Path, target: str, user: str, exclude: Sequence[str]) -> None:
        """Copy a file, or a directory's content, into the sandbox."""
        if not source.exists():
            raise SandboxError("does not exist on this host", file=str(source))
        whole = source.is_dir()
        with self._unnamed() as packed:
            name = None if whole else posixpath.basename(target)
            await asyncio.to_thread(pack, source, packed, (0, 0), exclude, name)
            packed.flush()
            packed.seek(0)
            await self._call("unpack", target if whole else posixpath.dirname(target), [packed.fileno()], user=user)

    async def download(self, source: str, target: Path, exclude: Sequence[str]) -> bool:
        """Copy a file, or a directory's content, out of the sandbox; False when there is none."""
        with self._unnamed() as packed:
            answer = await self._call("pack", source, [packed.fileno()], limit=DOWNLOAD_LIMIT, depth=MAX_DEPTH)
            if "missing" in answer:
                return False
            packed.seek(0)
            if found := answer.get("too_large"):
                raise too_large(source, found["size"], found["largest"])
            if "too_deep" in answer:
                raise UnsafePathError(
                    f"is nested deeper than {MAX_DEPTH} directories: it is not downloaded",
                    file=source,
                    remedy="let the agent leave no such directory there",
                )
            await run_stoppable(partial(unpack, packed, target, exclude, answer["single"]))
        return True

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
