"""Starting containers, after writing the idle program, which is their first process.

A container's image may have been captured after an agent was root, and have its shell and loader. So the first process
is a program of the engine without libraries. It is on a volume of the container's own, and is written anew before each
start, when no process runs that could change it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow.confined import ConfinedDirectory
from benchflow.errors import BenchFlowError, SandboxUnavailableError
from benchflow.planes.sandbox.archives import pack_bytes
from benchflow.planes.sandbox.docker.container_config import IDLE, PROGRAMS
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.idle_program import MACHINES, build_program

_NAME = IDLE.removeprefix(f"{PROGRAMS}/")
_MODE = 0o555


class Starter:
    """Starts the containers of one daemon."""

    def __init__(self, engine: DockerDaemon, info: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Make it.

        Args:
            engine: The daemon.
            info: Returns the daemon's `info`.
        """
        self._engine = engine
        self._info = info

    async def start(self, container: str) -> None:
        """Start a container. One that runs already is success.

        Raises:
            SandboxUnavailableError: There is no idle program for the daemon's machine.
            SandboxError: The container does not start.
        """
        machine = (await self._info())["Architecture"]
        if machine not in MACHINES:
            raise SandboxUnavailableError(
                f"the Docker daemon's machine is {machine!r}, for which there is no program that a container idles in",
                remedy=f"use a daemon on one of {', '.join(MACHINES)}",
            )
        # Not hidden: a task's variables must be readable in `/proc/1/environ`, as in any container.
        content = build_program(machine, is_hidden=False)

        def start(client: RecordingClient) -> None:
            mounts = client.inspect_container(container)["Mounts"]
            # A container from an earlier version of the engine has no such volume.
            volume = next((mount["Source"] for mount in mounts if mount["Destination"] == PROGRAMS), None)
            if volume is not None and not (self._engine.is_local and _write(Path(volume), content)):
                client.put_archive(container, PROGRAMS, pack_bytes(_NAME, content, _MODE, (0, 0)))
            client.start(container)

        await self._engine.call(start)


def _write(volume: Path, content: bytes) -> bool:
    """Write the program into a volume's directory, faster than through the daemon. Return False if not possible."""
    if os.geteuid() != 0:
        return False
    try:
        with ConfinedDirectory(volume) as directory, directory.replacing(_NAME, _MODE) as file:
            file.write(content)
    except (OSError, BenchFlowError):
        # The daemon's files are on another machine.
        return False
    return True
