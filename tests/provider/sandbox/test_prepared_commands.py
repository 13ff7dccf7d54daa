"""What the sandbox's root has prepared in the place of a command's files does not lead the engine elsewhere."""

from __future__ import annotations

from support.verified_sandboxes import InDocker, sh

from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.sandbox.driven.sandbox_records import make_process_id
from benchflow.planes.sandbox.driven.wrapped import locate_command
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures


class TestInDocker(InDocker, SandboxFixtures):
    async def test_links_in_a_commands_directory_are_not_written_through(self, still: Sandbox) -> None:
        room = locate_command(make_process_id("verify-0"))
        await sh(still, f"mkdir -p {room} /kept; echo kept >/kept/file; ln -s /kept {room}/claim")
        await sh(still, f"for f in out err exit; do ln -s /kept/file {room}/$f; done")
        result = await still.exec_once("verify-0", ["sh", "-c", "echo said; exit 3"], cwd="/")
        assert (result.return_code, result.stdout) == (3, "said\n")
        assert (await still.read_file("/kept/file"), await sh(still, "ls /kept")) == ("kept\n", "file\n")

    async def test_a_commands_directory_that_is_a_link_is_made_anew(self, still: Sandbox) -> None:
        room = locate_command(make_process_id("verify-1"))
        await sh(still, f"mkdir -p {room} /other; rmdir {room}; ln -s /other {room}")
        assert (await still.exec_once("verify-1", ["true"], cwd="/")).return_code == 0
        assert await sh(still, "ls /other") == ""
