"""The identity of a process: its pid with its start time, since a pid may be reused by another process."""

from __future__ import annotations

import os

_EXITING = 0x4
"""The kernel's flag PF_EXITING: a sandbox's first process waits in this state for the end of all others."""


def read_start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None if it does not exist, or is a zombie or exiting."""
    try:
        # Not by `pathlib`, which the helper of local sandboxes does not import.
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" or int(fields[6]) & _EXITING else int(fields[19])


def is_alive(pid: int, started: int | None) -> bool:
    """Return whether the process with this pid and start time runs; with None, whether any process with this pid."""
    now = read_start_time(pid)
    return now is not None and started in (None, now)


def open_process(pid: int, started: int) -> int | None:
    """Return a pidfd of the process with this pid and start time; None if it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if read_start_time(pid) == started:
        return handle
    os.close(handle)
    return None
