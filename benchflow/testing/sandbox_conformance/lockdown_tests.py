"""Protection of a verifier from an agent's leftovers, as `Capabilities.lockdown` claims it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from benchflow.contracts.file_changes import FileState
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, Start

LIARS = """for name in base64 cat chmod chown cp dd find head install ls mkdir mv od readlink stat tail tar test; do
  place=$(command -v "$name") || continue
  case $place in /*) printf '#!/bin/sh\\necho lie\\n' >"$place" ;; esac
done
"""
"""Replaces the programs that show and copy files, as an agent with root may do."""


async def lie(sandbox: Sandbox) -> None:
    """Replace the sandbox's programs by ones that lie."""
    with contextlib.suppress(SandboxError):
        # The command's own end may be reported by such a program.
        await sandbox.exec(["sh", "-c", LIARS])


MAKE = """
mkdir -p /opt/old/deep; echo a >/opt/old/a; echo b >/opt/old/deep/b
echo c >/etc/removed; echo d >/opt/turned; echo e >/etc/hostname-of-mine
"""
"""Makes the files that `CHANGE` then changes."""

CHANGE = """
mkdir -p /etc/changed.d /opt/made && echo one >/opt/made/file && ln -s made /opt/link
echo "# more" >>/etc/passwd; chmod 600 /etc/group; chown 7:8 /etc/hostname-of-mine
rm /etc/removed; rm -r /opt/old && mkdir /opt/old && echo new >/opt/old/new
rm /opt/turned && mkdir /opt/turned
mkdir /work && echo left out >/work/file
touch /etc/shadow
"""
"""Adds, changes and removes files; those in /work are left out of the comparison."""


class LockdownTests(SandboxFixtures):
    """Tests of the declared lockdown: list changes, replace files, and start a clean sandbox, past lying programs."""

    async def test_changed_files_are_listed_past_programs_that_lie(
        self, provider: SandboxProvider, own: Sandbox
    ) -> None:
        if provider.capabilities().lockdown == "none":
            pytest.skip("the provider claims no lockdown")
        await own.control(MAKE)
        before = await own.changes(skip=["/work"])
        assert (await own.control(CHANGE)).return_code == 0
        await lie(own)
        after = await own.changes(before, skip=["/work"])
        assert after.base == before.base

        def changed(path: str) -> bool:
            was, now = before.files.get(path), after.files.get(path)
            return was is not now and (now is None or not now.is_same(was))

        assert changed("/etc/passwd")
        assert changed("/etc/removed")
        assert changed("/opt/old/a")
        assert changed("/opt/old/deep")
        assert not changed("/etc/shadow")
        assert not any(path.startswith(("/work", "/proc", "/sys", "/dev")) for path in after.files)
        kinds = {path: state.kind for path in after.files if (state := after.files[path]) is not None}
        assert kinds["/opt/made"] == kinds["/opt/turned"] == "directory"
        assert kinds["/opt/made/file"] == kinds["/opt/old/new"] == "file"
        link, group, own_name = (after.files[path] for path in ("/opt/link", "/etc/group", "/etc/hostname-of-mine"))
        assert link is not None
        assert (link.kind, link.target) == ("link", "made")
        assert group is not None
        assert group.mode == 0o600
        assert own_name is not None
        assert (own_name.uid, own_name.gid) == (7, 8)

    async def test_changes_are_compared_with_those_of_the_sandbox_that_it_was_forked_from(
        self, provider: SandboxProvider, own: Sandbox
    ) -> None:
        if provider.capabilities().lockdown == "none" or not provider.capabilities().fork:
            pytest.skip("the provider claims no lockdown, or does not fork")
        await own.control("echo before >/etc/before; echo as it was >/etc/same")
        before = await own.changes()
        await own.control("echo changed >/etc/before; rm /etc/shells; echo new >/etc/new")
        [ref] = await own.fork([f"{own.ref.name}-child"])
        child = await provider.attach(ref)
        try:
            after = await child.changes(before)
            assert after.base == before.base
            same, old, new = (after.files.get(f"/etc/{name}") for name in ("same", "before", "new"))
            assert same is not None
            assert same.is_same(before.files["/etc/same"])
            assert old is not None
            assert not old.is_same(before.files["/etc/before"])
            assert new is not None
            assert after.files.get("/etc/shells") is None
        finally:
            await child.stop()

    async def test_files_and_links_are_put_in_place_of_others_past_programs_that_lie(
        self, provider: SandboxProvider, own: Sandbox
    ) -> None:
        if provider.capabilities().lockdown == "none":
            pytest.skip("the provider claims no lockdown")
        await own.control("mkdir -p /opt/place; ln -s /nowhere /opt/place/was-link; echo x >/opt/place/was-file")
        await lie(own)
        file = FileState(kind="file", mode=0o4750, uid=5, gid=6)
        link = FileState(kind="link", target="was-link")
        await own.put_outside({"/opt/place/was-link": (file, b"content"), "/opt/place/was-file": (link, b"")})
        assert await own.read_outside("/opt/place/was-file") == b"content"
        found = (await own.changes()).files
        put, linked = found["/opt/place/was-link"], found["/opt/place/was-file"]
        assert put is not None
        assert (put.kind, put.mode, put.uid, put.gid) == ("file", 0o4750, 5, 6)
        assert linked is not None
        assert (linked.kind, linked.target) == ("link", "was-link")

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
