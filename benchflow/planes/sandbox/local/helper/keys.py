"""The kernel's keys: a sandbox has none.

No namespace divides them. A session's keyring, which may hold what whoever started the engine keeps there, goes on to
all that is started from it; and every key has a number, by which root of a sandbox, being the same user to the kernel
as root of the host, could reach the host's and the other sandboxes' keys without ever having been given them: so the
filter refuses all asking (`system_calls`), once this session's keyring has been left.
"""

from __future__ import annotations

import errno
import os

from benchflow.planes.sandbox.local.helper import system_calls
from benchflow.planes.sandbox.local.helper.kernel import syscall

_JOIN_SESSION_KEYRING = 1


def leave_session_keyring() -> None:
    """Exchange the session's keyring for an empty one.

    On a kernel without keyrings there is nothing to leave; in a container that refuses them already, neither.
    """
    number = system_calls.MACHINES[os.uname().machine][0].number("keyctl")
    try:
        syscall("keyctl", number or 0, _JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
