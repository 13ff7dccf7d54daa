"""Single files: read and written whole, also past links that a hostile root has made."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

import pytest

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures

BINARY = bytes(range(256)) * 40
"""Content that has every byte."""


async def listing(sandbox: Sandbox, path: str) -> list[str]:
    """Return the entries below a directory, sorted, as `path type mode owner:group`."""
    said = await sandbox.exec(["find", path, "-mindepth", "1", "-printf", "%P %y %m %U:%G\\n"])
    return sorted(said.stdout.splitlines())


class FileTests(SandboxFixtures):
    """Tests of `read_bytes`, `read_file` and `write_file`."""

    @pytest.fixture
    def host_secret(self, tmp_path: Path) -> Path:
        """Return a file of this host that no sandbox may reach, alone in its directory."""
        (tmp_path / "host").mkdir()
        secret = tmp_path / "host" / "secret"
        secret.write_text(f"secret-{uuid.uuid4().hex}")
        return secret

    async def test_what_is_written_is_what_is_read(self, sandbox: Sandbox, room: str) -> None:
        for size in (0, 1, 1000, 600_000, 3_000_000, 20_000_000):
            content = (BINARY * (size // len(BINARY) + 1))[:size]
            await sandbox.write_file(f"{room}/made/for/this/file", content)
            assert await sandbox.read_bytes(f"{room}/made/for/this/file") == content

    async def test_text_is_written_as_utf_8(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.write_file(f"{room}/täxt 'n\" €", "Größe\n")
        assert (await sandbox.read_bytes(f"{room}/täxt 'n\" €")).decode() == "Größe\n"

    async def test_a_written_file_has_its_mode_and_owner_and_so_have_new_parents(
        self, sandbox: Sandbox, room: str
    ) -> None:
        await sandbox.write_file(f"{room}/x/.config/y/z.sh", "text", mode=0o700, user="nobody")
        assert await listing(sandbox, room) == [
            "x d 755 65534:65534",
            "x/.config d 755 65534:65534",
            "x/.config/y d 755 65534:65534",
            "x/.config/y/z.sh f 700 65534:65534",
        ]

    async def test_the_owner_may_be_an_id_that_has_no_name(self, sandbox: Sandbox, room: str) -> None:
        for name, size in (("one", 10), ("two", 2_000_000)):
            await sandbox.write_file(f"{room}/{name}", b"x" * size, mode=0o640, user=1234)
        assert await listing(sandbox, room) == ["one f 640 1234:0", "two f 640 1234:0"]

    async def test_an_unknown_owner_is_an_error_that_names_it(self, sandbox: Sandbox, room: str) -> None:
        with pytest.raises(SandboxError, match="ghost"):
            await sandbox.write_file(f"{room}/one", "x", user="ghost")
        assert await listing(sandbox, room) == []

    async def test_a_file_that_is_there_is_replaced_with_its_mode_and_owner(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.write_file(f"{room}/one", "a much longer text", mode=0o600, user="nobody")
        await sandbox.write_file(f"{room}/one", "new")
        assert await sandbox.read_bytes(f"{room}/one") == b"new"
        assert await listing(sandbox, room) == ["one f 644 0:0"]

    async def test_a_running_program_can_be_replaced(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["cp", "/bin/sleep", f"{room}/program"])
        await sandbox.exec(["sh", "-c", f"{room}/program 30 & echo"])
        await sandbox.write_file(f"{room}/program", "#!/bin/sh\necho new\n", mode=0o755)
        assert (await sandbox.exec([f"{room}/program"])).stdout == "new\n"
        await sandbox.kill_processes(keep="nothing")

    async def test_writers_at_the_same_moment_leave_one_whole_file(self, sandbox: Sandbox, room: str) -> None:
        contents = [bytes([n]) * 100_000 for n in range(65, 71)]
        await asyncio.gather(*(sandbox.write_file(f"{room}/one", content) for content in contents))
        assert await sandbox.read_bytes(f"{room}/one") in contents
        assert await listing(sandbox, room) == ["one f 644 0:0"]

    async def test_writing_replaces_a_link_and_not_what_it_leads_to(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && echo kept >target && ln -s target link"])
        await sandbox.write_file(f"{room}/link", "new")
        assert await sandbox.read_bytes(f"{room}/target") == b"kept\n"
        assert await sandbox.read_bytes(f"{room}/link") == b"new"

    async def test_reading_and_writing_follow_a_link_to_a_directory(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir real && echo x >real/old && ln -s {room}/real way"])
        await sandbox.write_file(f"{room}/way/deep/new", "y")
        assert await sandbox.read_bytes(f"{room}/real/deep/new") == b"y"
        assert await sandbox.read_bytes(f"{room}/way/old") == b"x\n"

    async def test_the_names_of_the_network_can_be_written(self, sandbox: Sandbox) -> None:
        for file in ("/etc/hosts", "/etc/resolv.conf"):
            before = await sandbox.read_bytes(file)
            await sandbox.write_file(file, "192.0.2.1 elsewhere\n")
            assert await sandbox.read_bytes(file) == b"192.0.2.1 elsewhere\n"
            await sandbox.write_file(file, before)

    async def test_a_directory_cannot_be_written_as_a_file(self, sandbox: Sandbox, room: str) -> None:
        with pytest.raises(SandboxError, match=room):
            await sandbox.write_file(room, "x")
        assert await listing(sandbox, room) == []

    async def test_a_file_cannot_be_written_below_a_file(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="/etc/passwd"):
            await sandbox.write_file("/etc/passwd/x", "x")

    async def test_reading_what_is_not_there_is_file_not_found(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["ln", "-s", "/no/such", f"{room}/dangling"])
        for path in ("no", "no/such", "dangling"):
            with pytest.raises(FileNotFoundError, match=f"{room}/{path}"):
                await sandbox.read_bytes(f"{room}/{path}")

    async def test_reading_what_is_not_a_regular_file_is_an_error_and_does_not_hang(
        self, sandbox: Sandbox, room: str
    ) -> None:
        make = "mkdir directory; mkfifo pipe; ln -s /dev/zero endless; ln -s /dev/tty terminal"
        await sandbox.exec(["sh", "-c", f"cd {room}; {make}"])
        for name in ("directory", "pipe", "endless", "terminal"):
            with pytest.raises(SandboxError, match="not a regular file"):
                await sandbox.read_bytes(f"{room}/{name}")

    async def test_reading_a_file_that_is_too_large_is_an_error(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["truncate", "-s", "10G", f"{room}/huge"])
        with pytest.raises(SandboxError, match="larger than"):
            await sandbox.read_bytes(f"{room}/huge")

    async def test_the_engine_reads_what_nobody_may_read(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir -m 0 d && echo x >d/f && chmod 0 d/f && chown 4321 d d/f"])
        assert await sandbox.read_bytes(f"{room}/d/f") == b"x\n"

    async def test_a_file_of_the_kernel_is_read_whole(self, sandbox: Sandbox) -> None:
        assert b"MemTotal" in await sandbox.read_bytes("/proc/meminfo")

    @pytest.mark.parametrize(
        "lead", ["{}", "../../../../../../../../..{}", "/proc/self/root{}", "/proc/1/cwd/../../..{}"]
    )
    async def test_a_link_leads_to_a_place_inside_however_it_is_laid(
        self, sandbox: Sandbox, room: str, host_secret: Path, lead: str
    ) -> None:
        secret, directory = lead.format(host_secret), lead.format(host_secret.parent)
        await sandbox.exec(["ln", "-s", secret, f"{room}/file"])
        await sandbox.exec(["ln", "-s", directory, f"{room}/directory"])
        for path in ("file", "directory/secret"):
            with contextlib.suppress(FileNotFoundError, SandboxError):
                assert host_secret.read_bytes() not in await sandbox.read_bytes(f"{room}/{path}")
        before = host_secret.read_text()
        for path in ("file", "directory/secret", "directory/new", "directory/new/er"):
            with contextlib.suppress(SandboxError):
                await sandbox.write_file(f"{room}/{path}", "written from the host")
        assert host_secret.read_text() == before
        assert [path.name for path in host_secret.parent.iterdir()] == ["secret"]

    async def test_links_that_change_while_files_are_read_and_written_lead_nowhere_else(
        self, sandbox: Sandbox, room: str, host_secret: Path
    ) -> None:
        flip = (
            "import os, sys\n"
            "room, outside = sys.argv[1:]\n"
            "os.makedirs(room + '/real')\n"
            "open(room + '/real/secret', 'w').write('inside')\n"
            "while True:\n"
            "    for leads_to in ('real', outside):\n"
            "        os.symlink(leads_to, room + '/next')\n"
            "        os.rename(room + '/next', room + '/way')\n"
        )
        command = ["python3", "-c", flip, room, str(host_secret.parent)]
        task = asyncio.create_task(sandbox.exec(command))
        for n in range(20):
            with contextlib.suppress(FileNotFoundError, SandboxError):
                assert host_secret.read_bytes() not in await sandbox.read_bytes(f"{room}/way/secret")
            with contextlib.suppress(FileNotFoundError, SandboxError):
                await sandbox.write_file(f"{room}/way/new-{n}", "x")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert host_secret.read_text().startswith("secret-")
        assert [path.name for path in host_secret.parent.iterdir()] == ["secret"]
