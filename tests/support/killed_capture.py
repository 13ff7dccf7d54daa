"""Snapshots taken by processes of their own, which may die at any moment of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from benchflow.contracts.sandbox import SandboxRef

_TAKE = """
import asyncio, os, signal, sys
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.sandbox import directory_trees
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

ref, name, moment = sys.argv[1:]

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "copy":
    directory_trees._copy_attributes = die
elif moment.startswith("after "):
    real = getattr(RecordingClient, moment[6:])
    setattr(RecordingClient, moment[6:], lambda *args, **options: die(real(*args, **options)))
elif moment:
    setattr(RecordingClient, moment, die)

async def main():
    sandbox = await DrivenProvider(DockerDriver()).attach(SandboxRef.model_validate_json(ref))
    print((await sandbox.snapshot(name)).reference)

asyncio.run(main())
"""


def take_snapshot(
    ref: SandboxRef, name: str, moment: str = "", *, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Take a snapshot of a Docker sandbox in a process of its own, which prints the reference.

    Args:
        moment: At which the process is killed: at a call of the daemon, or `after` it, or as files are copied (`copy`).
        before: Command that runs the process.
    """
    command = [*before, sys.executable, "-c", _TAKE, ref.model_dump_json(), name, moment]
    return subprocess.run(command, capture_output=True, text=True)
