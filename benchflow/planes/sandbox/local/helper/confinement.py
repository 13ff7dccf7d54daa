"""The rights that every process gives up before it runs a program in a sandbox, whichever way it came in."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from benchflow.planes.sandbox.local.helper import kernel
from benchflow.planes.sandbox.local.helper.keys import leave_session_keyring
from benchflow.planes.sandbox.local.helper.seccomp import filter_system_calls


def confine(capabilities: Iterable[int]) -> None:
    """Give up privileges for this process and all that it starts.

    These are all capabilities but the given ones, gaining new privileges, the session keyring, core dumps to the host,
    and the system calls that the filter refuses.
    """
    kernel.keep_capabilities(capabilities)
    kernel.forbid_new_privileges()
    leave_session_keyring()
    with open("/proc/sys/kernel/core_pattern", "rb") as file:
        limit = find_core_limit(file.read())
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    filter_system_calls()


def find_core_limit(pattern: bytes) -> int | None:
    """Return the RLIMIT_CORE that keeps core dumps inside, for the kernel's core pattern; None if none is needed.

    A pattern that begins with `|` names a program, and one with `@` a socket, which receives cores as root of the host,
    whatever the limit is: only a limit of 1 turns them off (core(5)).
    """
    return 1 if pattern[:1] in (b"|", b"@") else None
