"""Short shell scripts of the engine's own, which a driver runs as root."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from benchflow.contracts.driver import SandboxDriver, ScriptResult
from benchflow.errors import SandboxBusyError, SandboxSpaceError

ROOM = "/run/benchflow"
"""Where the engine's own files lie in a sandbox."""

DISK_FULL = "no space left on device"
_FULL = (DISK_FULL, "disk quota exceeded")
# dash and busybox say the first of each; bash, which tries for a quarter of a minute, the second.
_COULD_NOT_FORK = re.compile(r"(?:an(?:no|')t fork\b|\bfork: )[^\n]*\n*\Z")
# No script of the engine's ends with these codes by itself.
_GAVE_UP = (2, 254)


class Scripts:
    """Runs scripts in one sandbox, one at a time.

    Whoever kills what an agent has left would else take the shell of another script for that.
    """

    def __init__(self, driver: SandboxDriver, handle: str) -> None:
        self._driver = driver
        self._handle = handle
        self._turn = asyncio.Lock()

    async def run(
        self, script: str, *, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> ScriptResult:
        """Run a script that may be run twice.

        Raises `SandboxError` if it does not end in time, `SandboxBusyError` if no process can be started for it.
        """
        async with self._turn:
            answer = await self._driver.run_script(self._handle, script, sink=sink, timeout=timeout)
        if gave_up(answer):
            raise out_of_processes(answer.complaint)
        return answer

    async def renew(self) -> None:
        """Let go of a shell that runs: processes of the sandbox may have changed what it has open."""
        await self._driver.renew_scripts(self._handle)


def gave_up(answer: ScriptResult) -> bool:
    """Tell whether a script ended because it could start no other process."""
    return answer.exit_code in _GAVE_UP and could_not_fork(answer.complaint)


def could_not_fork(said: str) -> bool:
    """Tell whether this is how a shell ends that could start no other process."""
    return _COULD_NOT_FORK.search(said) is not None


def out_of_processes(said: str) -> SandboxBusyError:
    """Return the error for a sandbox with as many processes as it may have. said: by its shell, or who starts one."""
    return SandboxBusyError(
        f"no other process can be started in the sandbox: {said}",
        remedy="see what runs in it: its commands have started as many processes as it may have",
    )


def raise_if_full(complaint: str) -> None:
    """Raise `SandboxSpaceError` if this is what a program says when the disk is full."""
    if any(part in complaint.lower() for part in _FULL):
        raise SandboxSpaceError(
            f"no space is left for the files of the sandbox: {complaint}",
            remedy="free space on the disk where the sandboxes' files are",
        )
