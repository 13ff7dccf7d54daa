"""What the worker and its helper process share: who a process is, and where an answer ends."""

from __future__ import annotations

import os

ANSWER_END = b"\n"
"""Ends the helper's answer, which is one line of JSON. The end of the pipe can't: the process that becomes a command
has a copy of it until it has closed all that isn't the command's, and is in the sandbox's pid namespace before that.
Root inside can stop it there (SIGSTOP), and would hold up whoever waits for the pipe's end.
"""

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
