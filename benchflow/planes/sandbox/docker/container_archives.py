"""Tar archives of a container's files: packed by its own tar if it has one, which is faster, else by the daemon."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import threading
from collections.abc import Callable

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.cancellation import StoppedError
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.docker.root_shell import RootShell
from benchflow.planes.sandbox.docker.translation import NotFoundError

_NO_TAR = 43
"""Exit codes of the script that examines the path: there is no tar; nothing is there; it is no directory."""

_NOT_THERE = 44
_NO_FILE = 45


async def get_archive(
    engine: DockerDaemon, shell: RootShell, container: str, path: str, take: Callable[[bytes], None]
) -> bool | None:
    """Pass a file, or the content of a directory, to a callback as a tar archive.

    Args:
        engine: The daemon.
        shell: Root shell of the container.
        container: Id of the container.
        path: Absolute path in the container. A link at the path itself is followed, if the container has tar.
        take: Callback that receives the archive in pieces.

    Returns:
        Whether it is a single file. None if there is nothing at the path.

    Raises:
        SandboxError: It can't be packed.
    """
    quoted = shlex.quote(path)
    kind = (
        await shell.run(
            f"command -v tar >/dev/null 2>&1 || exit {_NO_TAR}\n"
            f"[ -e {quoted} ] || exit {_NOT_THERE}; [ -d {quoted} ] || exit {_NO_FILE}"
        )
    ).exit_code
    if kind == _NO_TAR:
        return await _get_from_daemon(engine, shell, container, path, take)
    if kind == _NOT_THERE:
        return None
    if kind == _NO_FILE:
        parent, name = shlex.quote(posixpath.dirname(path) or "/"), shlex.quote(posixpath.basename(path))
        what = f"-h -C {parent} -- {name}"
    else:
        what = f"-C {quoted} ."
    answer = await shell.run(f"tar -cf - {what}", sink=take, timeout=None)
    # tar exits with 1 if a file changed or vanished while it was read: what was read counts.
    if answer.exit_code > 1:
        raise SandboxError(f"cannot be packed: {answer.complaint}", file=path)
    return kind == _NO_FILE


async def _get_from_daemon(
    engine: DockerDaemon, shell: RootShell, container: str, path: str, take: Callable[[bytes], None]
) -> bool | None:
    """Do as `get_archive`, with the daemon's archive of the path. A link to a file is passed on as a link."""
    resolved = await shell.run(f"cd -P -- {shlex.quote(path)} 2>/dev/null && pwd -P")
    whole = resolved.exit_code == 0
    source = f"{resolved.out.decode().rstrip(chr(10))}/." if whole else path

    def fetch(stop: threading.Event, client: RecordingClient) -> None:
        pieces, _ = client.get_archive(container, source, chunk_size=None)
        with contextlib.closing(pieces):
            for piece in pieces:
                if stop.is_set():
                    raise StoppedError
                take(piece)

    try:
        await engine.call_stoppable(fetch)
    except NotFoundError:
        return None
    return not whole
