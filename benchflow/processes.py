"""Processes of the stack as their supervisor handles them: started, given time before the next try, ended."""

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
"""Most that the limit of open files is raised to. Programs in local sandboxes inherit it, and some of them close every
descriptor up to it when they start."""
_PR_SET_PDEATHSIG = 1


def raise_open_files() -> int:
    """Raise the limit of open files as far as it goes, for this process and all that it starts, and return it.

    Shells set the soft limit to 1024 for programs that use `select`, and the hard one far above (getrlimit(2)).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return max(soft, most)


class Backoff:
    """How long to wait before a process that died is started again: at once, then longer and longer."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._started = time.monotonic()

    def started(self) -> None:
        self._started = time.monotonic()

    def next(self) -> float:
        if time.monotonic() - self._started > 10:
            self._delay = 0.0
        delay, self._delay = self._delay, min(5.0, max(0.1, self._delay * 2))
        return delay


def _die_with_parent() -> None:
    """So that a killed supervisor leaves no orphans: its children are told to end by the kernel."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def spawn(
    command: list[str], log: Path, env: dict[str, str], *, reports: bool = False, descriptors: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    """Start a process of the stack that ends with this one.

    Args:
        command: Its argv.
        log: The file that its output is appended to.
        env: Its environment.
        reports: Make its stdout a pipe instead.
        descriptors: Open files that it inherits, besides.
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
    """SIGTERM, and SIGKILL if that does not help; SIGKILL at once without patience."""
    if process.returncode is not None:
        return
    if patience:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        process.kill()
        await process.wait()
