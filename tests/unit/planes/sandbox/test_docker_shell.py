"""The root shell of a container that cannot be entered any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.docker.exec_stream import STDOUT
from benchflow.planes.sandbox.docker.root_shell import RootShell

DYING = b"OCI runtime exec failed: unable to start container process: error executing setns process: exit status 1"


class Refusal:
    """The stream of a command that the runtime could not start."""

    def __init__(self) -> None:
        self.said = [(STDOUT, DYING)]

    async def send(self, data: bytes) -> None:
        return None

    async def read(self) -> tuple[int, bytes] | None:
        return self.said.pop() if self.said else None

    def close(self) -> None:
        return None


class Removing:
    """An engine whose daemon says for some looks yet that the container runs."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    async def call_entered(self, container, ask):
        return ask(self)

    async def inspect(self, container: str):
        self.left -= 1
        return {"Name": "/it", "State": {"Running": self.left >= 0, "ExitCode": 137, "OOMKilled": False}}

    async def open_exec(self, container: str, exec_id: str) -> Refusal:
        return Refusal()

    def exec_create(self, *args, **options):
        return {"Id": "execution"}


async def test_a_container_that_is_being_removed_is_lost_and_does_not_lack_a_shell(state: Path) -> None:
    with pytest.raises(SandboxLostError, match="stopped"):
        await RootShell(Removing(3), "container").run("true")
