"""Starting a container, once the program that it idles in is in its place.

The image of a container may hold what an agent left who was root, its shell and its loader included. So what a
container idles in is a program of the engine's, without libraries, below the daemon's init. It lies on the container's
own volume, and is written anew before each start: nothing runs then that could change it.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow.confined import ConfinedDirectory
from benchflow.errors import BenchFlowError, SandboxUnavailableError
from benchflow.planes.sandbox.archives import entry
from benchflow.planes.sandbox.docker.engine import Engine, RecordingClient
from benchflow.planes.sandbox.docker.launch import IDLE, ROOM
from benchflow.planes.sandbox.idle_program import MACHINES, program

_NAME = IDLE.removeprefix(f"{ROOM}/")
_MODE = 0o111


class Starter:
    """Starts the containers of one daemon. info: asks what the daemon says of itself."""

    def __init__(self, engine: Engine, info: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._engine = engine
        self._info = info

    async def start(self, container: str) -> None:
        """Start a container that does not run. One that was started in the meantime is success."""
        machine = (await self._info())["Architecture"]
        if machine not in MACHINES:
            raise SandboxUnavailableError(
                f"the Docker daemon's machine is {machine!r}, for which there is no program that a container idles in",
                remedy=f"use a daemon on one of {', '.join(MACHINES)}",
            )
        content = program(machine)

        def start(client: RecordingClient) -> None:
            if not (self._engine.is_local and _write(client, container, content)):
                client.put_archive(container, ROOM, _archive(content))
            client.start(container)

        await self._engine.call(start)


def _write(client: RecordingClient, container: str, content: bytes) -> bool:
    """Write the program to the container's volume, which is faster than to send it; False where that can't be done."""
    if os.geteuid() != 0:
        return False
    mounts = client.inspect_container(container)["Mounts"]
    for volume in [mount["Source"] for mount in mounts if mount["Destination"] == ROOM and mount["Type"] == "volume"]:
        try:
            with ConfinedDirectory(Path(volume)) as directory, directory.replacing(_NAME, _MODE) as file:
                file.write(content)
            return True
        except (OSError, BenchFlowError):
            # The daemon's files are another machine's, or a directory has the name: the daemon removes it.
            return False
    return False


def _archive(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = entry(_NAME, _MODE, (0, 0))
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()
