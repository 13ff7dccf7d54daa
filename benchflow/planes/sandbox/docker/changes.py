"""The files of a container that differ from those of its image, read from the daemon's layers if this host has them."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.file_changes import FileChanges
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.cancellation import StoppedError
from benchflow.planes.sandbox.docker import uppers
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.file_listing import list_archive
from benchflow.planes.sandbox.overlays import Overlay

_CHUNK = 1024 * 1024


async def find_overlay(
    engine: DockerDaemon, info: Mapping[str, Any], container: str, base: str | None
) -> tuple[str, Overlay] | None:
    """Return the id of a container's base image and the container's layers; None if this host can't read them.

    Args:
        engine: The daemon.
        info: The daemon's `info`.
        container: Id of the container.
        base: Id of the base image, as this function returned it; None for the image that the container was made from.

    Raises:
        SandboxError: The container's image is not based on the base image.
    """
    if not engine.is_local or not uppers.may_copy(info):
        return None

    def find(client: RecordingClient) -> tuple[str, Overlay] | None:
        described = client.inspect_container(container)
        layers = client.inspect_image(described["Image"])["RootFS"]["Layers"]  # type: ignore[no-untyped-call]
        own, upper = described["GraphDriver"]["Data"]["LowerDir"].split(":"), uppers.find_directory(described)
        # The first lower layer is the daemon's own, over the image's: it has the mount points of files.
        first, *image = (Path(directory) for directory in own)
        if len(image) != len(layers) or not upper.is_dir():
            return None
        number = (base or "").partition(":")[0]
        below = len(layers) if base is None else int(number) if number.isdigit() else 0
        if base not in (None, _format_id(layers[:below])):
            raise SandboxError(
                "its image is not made over the one that its files are to be compared with",
                remedy="run this rollout again in a fresh sandbox",
            )
        over = len(layers) - below
        return _format_id(layers[:below]), Overlay([upper, *image[:over]], [first, *image[over:]])

    return await engine.call(find)


async def export_files(engine: DockerDaemon, container: str, skip: Sequence[str]) -> FileChanges:
    """Return all files of a container, from the daemon's export of it.

    Args:
        engine: The daemon.
        container: Id of the container.
        skip: Paths to leave out, with all that is below them.

    Raises:
        UnsafePathError: The archive is broken, or too large.
    """

    def export(stop: threading.Event, client: RecordingClient) -> FileChanges:
        with tempfile.TemporaryFile() as packed:
            for piece in client.export(container, chunk_size=_CHUNK):
                if stop.is_set():
                    raise StoppedError
                packed.write(piece)
            packed.seek(0)
            return list_archive(packed, skip)

    return await engine.call_stoppable(export)


def _format_id(layers: Sequence[str]) -> str:
    """Return an id for an image with these layers: their number, and a digest of their digests."""
    return f"{len(layers)}:{hashlib.sha256(' '.join(layers).encode()).hexdigest()}"
