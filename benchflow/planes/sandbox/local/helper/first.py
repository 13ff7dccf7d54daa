"""The first process of a sandbox: a program that waits for ever and depends on no file of the sandbox.

It is executed from a file of some 300 bytes without libraries, because the root of a forked or restored sandbox may
hold files of an agent: the agent's own `sleep` or loader would be a process that no verifier ends.

No process inside may trace it or read its memory. The kernel forbids that from the execution on, since the file is not
readable by the process that executes it; but a host may have set `fs.suid_dumpable` to 1, which would allow it, so the
program makes itself undumpable, too.
"""

from __future__ import annotations

import os

from benchflow.planes.sandbox.idle_program import build_program


def prepare() -> int:
    """Write the program to a file, remove the file's name, and return a descriptor for `execute`."""
    path = "/dev/init"
    writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o111)
    try:
        os.write(writing, build_program(os.uname().machine))
    finally:
        os.close(writing)
    # O_PATH, because the file is not readable by the process that executes it.
    handle = os.open(path, os.O_PATH)
    os.unlink(path)
    return handle


def execute(handle: int) -> None:
    """Execute the program in this process. Never returns.

    The process must have no capabilities left: with them it could read the file, and would be traceable.
    """
    os.execve(handle, ["init"], {})
