"""Processes of the stack, for its supervisor: start, backoff before a restart, end."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import signal
import subprocess
import time
from pathlib import Path

from benchflow.log_files import open_log

MAX_OPEN_FILES = 65_536
"""Maximum to which the limit of open files is raised. Programs in local sandboxes inherit it, and some of them close
every descriptor up to it when they start.
"""
_PR_SET_PDEATHSIG = 1


def raise_open_files() -> int:
    """Raise this process's limit of open files, which its children inherit, as far as possible, and return it.

    Shells set the soft limit to 1024 for programs that use `select`, and the hard one far above (getrlimit(2)).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return max(soft, most)


class Backoff:
    """Exponential backoff for restarts of a process: 0 s, then 0.1 s doubled up to 5 s; reset after a run of 10 s."""

    def __init__(self) -> None:
        """Make it for a process that starts now."""
        self._delay = 0.0
        self._started = time.monotonic()

    def started(self) -> None:
        """Note that the process was started now."""
        self._started = time.monotonic()

    def next(self) -> float:
        """Return the seconds to wait before the next start."""
        if time.monotonic() - self._started > 10:
            self._delay = 0.0
        delay, self._delay = self._delay, min(5.0, max(0.1, self._delay * 2))
        return delay


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies: a killed supervisor leaves no orphans."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def spawn(
    command: list[str], log: Path, env: dict[str, str], *, reports: bool = False, descriptors: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    """Start a process of the stack, which is ended with this one.

    Args:
        command: Its argv.
        log: File that its output is appended to.
        env: Its environment.
        reports: Whether its stdout is a pipe for the caller, and only stderr goes to the log.
        descriptors: Open files that it inherits in addition.
    """
    with open_log(log) as output:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if reports else output,
            stderr=output,
            env=env,
            cwd="/",
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=_die_with_parent,
        )


async def end(process: asyncio.subprocess.Process, patience: float) -> None:
    """Terminate a process and wait for its end: SIGTERM, then SIGKILL.

    Args:
        process: The process; one that has ended is success.
        patience: Seconds between the signals; 0 for SIGKILL at once.
    """
    if process.returncode is not None:
        return
    if patience:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        process.kill()
        await process.wait()
