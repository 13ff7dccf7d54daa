"""The kernel's keyrings, of which a sandbox has none.

No namespace divides them. A session keyring, which may hold secrets of the engine's parent, is inherited by all child
processes. And every key has a number, by which root of a sandbox, being the same user to the kernel as root of the
host, could reach the keys of the host and of other sandboxes. So the filter refuses all system calls for keys
(`system_calls`), once this session's keyring has been left.
"""

from __future__ import annotations

import errno
import os

from benchflow.planes.sandbox.local.helper import system_calls
from benchflow.planes.sandbox.local.helper.kernel import syscall

_JOIN_SESSION_KEYRING = 1


def leave_session_keyring() -> None:
    """Exchange the session keyring for an empty one.

    Do nothing on a kernel without keyrings, and in a container that refuses them already.
    """
    number = system_calls.MACHINES[os.uname().machine][0].number("keyctl")
    try:
        syscall("keyctl", number or 0, _JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
