"""How far a verifier can be kept from what an agent has left: what `Capabilities.lockdown` says, and no less."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.fixtures import Fixtures, Start

LIARS = """for name in base64 cat chmod chown cp dd find head install ls mkdir mv od readlink stat tail tar test; do
  place=$(command -v "$name") || continue
  case $place in /*) printf '#!/bin/sh\\necho lie\\n' >"$place" ;; esac
done
"""
"""What an agent that is root may do to the programs by which somebody would look."""


async def lie(sandbox: Sandbox) -> None:
    """Put the liars in place."""
    with contextlib.suppress(SandboxError):
        # Its own end may be told by such programs.
        await sandbox.exec(["sh", "-c", LIARS])


class Lockdown(Fixtures):
    """What is declared."""

    async def test_files_are_read_and_written_past_programs_that_lie(
        self, provider: SandboxProvider, own: Sandbox
    ) -> None:
        if provider.capabilities().lockdown == "none":
            pytest.skip("the provider claims no lockdown")
        await own.write_file("/told", "true\n")
        await lie(own)
        assert await own.read_outside("/told") == b"true\n"
        await own.write_outside("/etc/put-here", b"as it was put\n")
        assert await own.read_outside("/etc/put-here") == b"as it was put\n"
        assert await own.read_outside("/nowhere") is None

    async def test_a_fresh_sandbox_has_nothing_of_what_was_done_in_another_and_takes_the_work(
        self, provider: SandboxProvider, start: Start, tmp_path: Path
    ) -> None:
        if provider.capabilities().lockdown != "clean_room":
            pytest.skip("the provider claims no clean room")
        dirty, seen = await start(), "cat /etc/os-release; ls -d /left /tmp/left; command -v useradd"
        before = await dirty.exec(["sh", "-c", seen], cwd="/")
        await dirty.exec(["sh", "-c", "echo changed >/etc/os-release; mkdir /left /tmp/left"])
        await lie(dirty)
        (tmp_path / "work").mkdir()
        (tmp_path / "work/a").write_text("it\n")
        fresh = await start()
        await fresh.upload(tmp_path / "work", "/work")
        assert await fresh.exec(["sh", "-c", seen], cwd="/") == before
        assert (await fresh.exec(["cat", "/work/a"], cwd="/")).stdout == "it\n"
