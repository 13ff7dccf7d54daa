"""Who a process is: a pid is used again, a pid with its start time is not."""

from __future__ import annotations

import os

_EXITING = 0x4
"""The kernel's mark of a process that is on its way out: the first one of a sandbox waits there for all others."""


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or only its end to be seen."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" or int(fields[6]) & _EXITING else int(fields[19])


def open_process(pid: int, started: int) -> int | None:
    """A handle (pidfd) on the process that had this pid and start time; None when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if start_time(pid) == started:
        return handle
    os.close(handle)
    return None
