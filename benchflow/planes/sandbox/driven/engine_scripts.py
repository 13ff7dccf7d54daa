"""Runner of the engine's short shell scripts, which a driver runs as root in a sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from benchflow.contracts.driver import SandboxDriver, ScriptResult
from benchflow.errors import SandboxBusyError, SandboxSpaceError

ENGINE_DIRECTORY = "/run/benchflow"
"""Directory of the engine's files in a sandbox."""

DISK_FULL = "no space left on device"
"""Message of `ENOSPC`, in lower case."""
_FULL = (DISK_FULL, "disk quota exceeded")
# dash and busybox print the first form; bash, which retries for 15 seconds, the second.
_FORK_MESSAGE = re.compile(r"(?:an(?:no|')t fork\b|\bfork: )[^\n]*\n*\Z")
# Exit codes of a shell that could not fork. No script of the engine ends with them by itself.
_FORK_EXIT_CODES = (2, 254)


class EngineScripts:
    """Runs scripts in one sandbox, one at a time.

    A script that kills the agent's processes could else take the shell of another one for an agent's.
    """

    def __init__(self, driver: SandboxDriver, handle: str) -> None:
        """Make it. handle: the driver's handle of the sandbox."""
        self._driver = driver
        self._handle = handle
        self._turn = asyncio.Lock()

    async def run(
        self, script: str, *, sink: Callable[[bytes], None] | None = None, timeout: float | None = 60.0
    ) -> ScriptResult:
        """Run a script, which must be repeatable, and return its result.

        Args:
            script: Text of the script.
            sink: Callback that receives stdout in pieces; then the result has none.
            timeout: Seconds after which it is killed; None for no limit.

        Raises:
            SandboxBusyError: The sandbox has as many processes as it may have.
            SandboxError: The script timed out.
        """
        async with self._turn:
            answer = await self._driver.run_script(self._handle, script, sink=sink, timeout=timeout)
        if is_fork_failure(answer):
            raise make_fork_error(answer.complaint)
        return answer

    async def renew(self) -> None:
        """Have the next script run in a new shell: processes of the sandbox may have changed the old one's files."""
        await self._driver.renew_scripts(self._handle)


def is_fork_failure(answer: ScriptResult) -> bool:
    """Return whether a script ended because its shell could start no other process."""
    return answer.exit_code in _FORK_EXIT_CODES and reports_fork_failure(answer.complaint)


def reports_fork_failure(said: str) -> bool:
    """Return whether a shell's stderr ends with the message that it could not fork."""
    return _FORK_MESSAGE.search(said) is not None


def make_fork_error(said: str) -> SandboxBusyError:
    """Return the error for a sandbox with as many processes as it may have. said: message of the shell or driver."""
    return SandboxBusyError(
        f"no other process can be started in the sandbox: {said}",
        remedy="see what runs in it: its commands have started as many processes as it may have",
    )


def raise_if_full(complaint: str) -> None:
    """Raise `SandboxSpaceError` if a program's stderr says that the disk is full."""
    if any(part in complaint.lower() for part in _FULL):
        raise SandboxSpaceError(
            f"no space is left for the files of the sandbox: {complaint}",
            remedy="free space on the disk where the sandboxes' files are",
        )
