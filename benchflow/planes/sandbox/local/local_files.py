"""Reading and writing a local sandbox's files, by the helper."""

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
from benchflow.planes.sandbox.archives import DOWNLOAD_LIMIT, make_size_error
from benchflow.planes.sandbox.cancellation import StoppedError, run_stoppable
from benchflow.planes.sandbox.local.helper_client import Helper, make_memory_file

_CHUNK = 1024 * 1024


class LocalFiles:
    """The files of one sandbox. Methods raise `SandboxError` for what the kernel refused, besides the errors they name.

    Args:
        helper: Helper that enters the sandbox.
        scratch: Directory for temporary files. It is created if it is missing.
        init: Returns pid and start time of the sandbox's first process. Called for each operation, and may raise.
    """

    def __init__(self, helper: Helper, scratch: Path, init: Callable[[], tuple[int, int]]) -> None:
        """Make it."""
        self._helper = helper
        self._scratch = scratch
        self._init = init

    async def read(self, path: str, limit: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError: There is no such file.
            SandboxError: It has more than `limit` bytes.
        """
        memory = make_memory_file()
        try:
            await self._call("read", path, [memory], limit=limit)
            return await asyncio.to_thread(os.pread, memory, os.fstat(memory).st_size, 0)
        finally:
            os.close(memory)

    async def write(self, path: str, content: bytes, mode: int, user: str) -> None:
        """Write a file with this mode and owner, replacing a file or a link of its name."""
        memory = make_memory_file(content)
        try:
            await self._call("write", path, [memory], mode=mode, user=user)
        finally:
            os.close(memory)

    async def unpack(self, directory: str, archive: IO[bytes], user: str | None) -> None:
        """Unpack a tar archive, with `user` as the owner of all files; None for the owners in the archive."""
        await self._call("unpack", directory, [archive.fileno()], user=user)

    async def pack(self, path: str, take: Callable[[bytes], None]) -> bool | None:
        """Pass a file, or the content of a directory, to the callback `take` as pieces of a tar archive.

        Returns:
            Whether `path` is a single file; None if there is nothing.

        Raises:
            SandboxError: It is larger than `DOWNLOAD_LIMIT`.
            UnsafePathError: It is nested deeper than `MAX_DEPTH` directories.
        """
        with self._unnamed() as packed:
            answer = await self._call("pack", path, [packed.fileno()], limit=DOWNLOAD_LIMIT, depth=MAX_DEPTH)
            if "missing" in answer:
                return None
            if found := answer.get("too_large"):
                raise make_size_error(path, found["size"], found["largest"])
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
        """Open a temporary file without a name."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._scratch)

    async def _call(self, operation: str, path: str, fds: list[int], **more: Any) -> dict[str, Any]:
        """Call the helper with the sandbox's first process, and translate the errors of the kernel."""
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
"""Participles of the operations, for error messages."""
