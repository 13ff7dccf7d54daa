"""What is told of a container that did not come up."""

from __future__ import annotations

from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.docker import container_config


class Late:
    """An engine whose daemon notes only after many looks that a container has ended."""

    def __init__(self, looks):
        self.looks, self.left = 0, looks

    async def call(self, ask):
        return ask(self)

    def inspect_container(self, _):
        self.looks += 1
        running = self.looks <= self.left
        return {"State": {"Running": running, "Status": "", "ExitCode": 3, "Error": "", "OOMKilled": False}}

    def logs(self, *_, **__):
        return b"last words\n"


async def test_an_end_that_the_daemon_notes_late_is_told_with_its_last_words():
    lost = SandboxLostError("cannot exec in a stopped container")
    error = await container_config.explain_failed_start(Late(150), "container", lost, every=0)
    assert "exit status 3" in error.message and error.log_tail == "last words"


async def test_where_there_is_no_shell_no_end_is_waited_for():
    engine = Late(10**9)
    error = await container_config.explain_failed_start(
        engine, "container", SandboxLostError('exec: "/bin/sh": no such file')
    )
    assert error.remedy == container_config.NO_SHELL and engine.looks == 1
