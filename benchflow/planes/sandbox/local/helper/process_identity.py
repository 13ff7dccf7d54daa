"""Shared by the worker and its helper: the identity of a process, and the end of a response."""

from __future__ import annotations

import os

ANSWER_END = b"\n"
"""End of the helper's response, which is one line of JSON.

The end of the pipe can't be used: the process that becomes a command has a copy of the pipe until it has closed all
descriptors that aren't the command's, and is in the sandbox's pid namespace before that. Root inside can stop it there
(SIGSTOP), and would hold up the reader of the pipe.
"""

_EXITING = 0x4
"""The kernel's flag PF_EXITING: a sandbox's first process waits in this state for the end of all others."""


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None if it does not exist, or is a zombie or exiting."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" or int(fields[6]) & _EXITING else int(fields[19])


def open_process(pid: int, started: int) -> int | None:
    """Return a pidfd of the process with this pid and start time; None if it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if start_time(pid) == started:
        return handle
    os.close(handle)
    return None
