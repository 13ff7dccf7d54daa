"""What every process gives up before it runs a program in a sandbox: the one door that all ways in lead through."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from benchflow.planes.sandbox.local.helper import kernel
from benchflow.planes.sandbox.local.helper.keys import leave_session_keyring
from benchflow.planes.sandbox.local.helper.seccomp import filter_system_calls


def confine(capabilities: Iterable[int]) -> None:
    """Give up, with all that this process will start, other capabilities, keys, system calls and the host's cores."""
    kernel.keep_capabilities(capabilities)
    kernel.no_new_privileges()
    leave_session_keyring()
    with open("/proc/sys/kernel/core_pattern", "rb") as file:
        limit = core_limit(file.read())
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    filter_system_calls()


def core_limit(pattern: bytes) -> int | None:
    """Return the limit that keeps cores of crashed programs inside, by the kernel's pattern; None where none is needed.

    A pattern that begins with `|` names a program, and one with `@` a socket, which get them as root of the host,
    whatever the limit is: only 1 means that there shall be none (core(5)).
    """
    return 1 if pattern[:1] in (b"|", b"@") else None
