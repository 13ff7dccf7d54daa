"""Starting a container, once the program that it idles in is in its place.

The image of a container may hold what an agent left who was root, its shell and its loader included. So what a
container idles in is a program of the engine's, without libraries. It lies on a volume of the container's own, and is
written anew before each start: nothing runs then that could change it.
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
from benchflow.planes.sandbox.docker.launch import IDLE, PROGRAMS
from benchflow.planes.sandbox.idle_program import MACHINES, program

_NAME = IDLE.removeprefix(f"{PROGRAMS}/")
_MODE = 0o555


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
        # What a task sets in its environment is to be found in PID 1's, by whoever looks there.
        content = program(machine, is_hidden=False)

        def start(client: RecordingClient) -> None:
            mounts = client.inspect_container(container)["Mounts"]
            # One that an earlier version made has another program.
            volume = next((mount["Source"] for mount in mounts if mount["Destination"] == PROGRAMS), None)
            if volume is not None and not (self._engine.is_local and _write(Path(volume), content)):
                client.put_archive(container, PROGRAMS, _archive(content))
            client.start(container)

        await self._engine.call(start)


def _write(volume: Path, content: bytes) -> bool:
    """Write the program to a volume, which is faster than to send it; False where that can't be done."""
    if os.geteuid() != 0:
        return False
    try:
        with ConfinedDirectory(volume) as directory, directory.replacing(_NAME, _MODE) as file:
            file.write(content)
    except (OSError, BenchFlowError):
        # The daemon's files are another machine's.
        return False
    return True


def _archive(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = entry(_NAME, _MODE, (0, 0))
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()
