"""Reading files of a container without any program of the container.

A root agent may have changed the shell, the loader and every tool. If this process sees the container's root, the
kernel opens files there, with links resolved as inside, at once. Else the daemon's archive calls do it, for tens of
milliseconds each: they follow links of a path's directories, and a link at its end is followed here.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from pathlib import Path

from benchflow.archive_reader import ArchiveLimits, read_archive
from benchflow.confined import open_in_root
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.docker.translation import NotFoundError

LIMIT = 64 * 1024 * 1024
"""Maximum number of bytes of a file; programs and libraries are smaller."""

_LINKS = 16
"""Maximum number of links that are followed at the end of a path."""


async def read_outside(engine: DockerDaemon, container: str, path: str) -> bytes | None:
    """Return the content of a file in a container; None if there is none.

    Raises:
        SandboxError: It is no regular file, or too large.
    """

    def read(client: RecordingClient) -> bytes | None:
        root = _open_root(client, container) if engine.is_local else None
        if root is None:
            return _read_from_daemon(client, container, path)
        try:
            return _read_below(root, path)
        finally:
            os.close(root)

    try:
        return await engine.call(read)
    except NotFoundError:
        return None


async def read_original(engine: DockerDaemon, container: str, path: str) -> bytes | None:
    """Return the content of a file in a container's image, read from a temporary container that never runs.

    None if there is no such file. Raises `SandboxError` if it is no regular file, or too large.
    """

    def read(client: RecordingClient) -> bytes:
        image = client.inspect_container(container)["Image"]
        # An image without a command needs one for a container; it is never run.
        made = client.create_container(image, ["true"])["Id"]
        try:
            return _read_from_daemon(client, made, path)
        finally:
            client.remove_container(made, force=True)

    try:
        return await engine.call(read)
    except NotFoundError:
        return None


def _open_root(client: RecordingClient, container: str) -> int | None:
    """Return a descriptor of a container's root directory; None if this process may not, or cannot, open it."""
    found = client.inspect_container(container)
    place = Path("/proc") / str(found["State"]["Pid"])
    try:
        handle = os.open(place / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # The daemon may be in another pid namespace, and pids are reused. Checked last: the descriptor can't change.
        if found["Id"] in (place / "cgroup").read_text():
            return handle
        os.close(handle)
    except OSError:
        pass
    return None


def _read_below(root: int, path: str) -> bytes | None:
    """Return the content of a file below a directory, out of which no link leads; None if there is none."""
    try:
        fd = open_in_root(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SandboxError(f"cannot be read, or is not a regular file: {error.strerror}", file=path) from error
    with os.fdopen(fd, "rb") as file:
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise SandboxError(f"is larger than {LIMIT} bytes", file=path)
    return content


def _read_from_daemon(client: RecordingClient, container: str, path: str) -> bytes:
    """Return the content of a file from the daemon's archive of it, following links at the end of the path."""
    for _ in range(_LINKS):
        pieces, _ = client.get_archive(container, path, chunk_size=None)
        packed = bytearray()
        for piece in pieces:
            packed += piece
            if len(packed) > LIMIT:
                raise SandboxError(f"is larger than {LIMIT} bytes", file=path)
        try:
            first = next(read_archive(io.BytesIO(packed), ArchiveLimits(size=LIMIT)), None)
            if first is not None and first.info.issym():
                path = posixpath.join(posixpath.dirname(path), first.info.linkname)
                continue
            if first is None or first.content is None:
                raise SandboxError("is not a regular file", file=path)
            return first.content.read()
        except tarfile.TarError as error:
            raise SandboxError(f"the daemon sent a broken archive: {error}", file=path) from error
    raise SandboxError("is a link in a circle", file=path)
