"""The first process of a sandbox: a program that waits for ever, and of which nothing is the sandbox's own.

It is executed from a file of some 200 bytes without libraries, because the root of a sandbox that was forked or
restored holds what an agent left there: a `sleep` or a loader of the agent's would be a process that no verifier ends.
Nobody inside may trace it or look into it. The kernel sees to that from the moment it is executed, since the file
cannot be read by who executes it; but by `fs.suid_dumpable`, which a host may have set to 1, so that the program asks,
too.
"""

from __future__ import annotations

import os

from benchflow.planes.sandbox.idle_program import program


def prepare() -> int:
    """Return a handle on the program, to be executed; it has no name any more."""
    path = "/dev/init"
    writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o111)
    try:
        os.write(writing, program(os.uname().machine))
    finally:
        os.close(writing)
    # Not for reading: who executes it may not.
    handle = os.open(path, os.O_PATH)
    os.unlink(path)
    return handle


def execute(handle: int) -> None:
    """Become the program. Never returns. The process may have no capability left, or it could read the file."""
    os.execve(handle, ["init"], {})
