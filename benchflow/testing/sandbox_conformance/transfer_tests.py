"""Files and directories copied in and out, also past links that lead elsewhere."""

from __future__ import annotations

import asyncio
import filecmp
import os
import uuid
from pathlib import Path

import pytest

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.file_tests import BINARY, listing
from benchflow.testing.sandbox_conformance.sandbox_fixtures import PATIENCE, SandboxFixtures

MANY = 500
"""Number of files in a large directory."""

HUGE = 48 * 1024 * 1024
"""Bytes of a large file."""


def tree(root: Path) -> Path:
    """Fill a directory with files that are hard to copy (links, a pipe, odd names), and return it."""
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "data.bin").write_bytes(BINARY)
    (root / "sub" / "deep" / "name with 'quotes' ü").write_text("x")
    (root / "sub" / "link").symlink_to("../run.sh")
    (root / "twin").hardlink_to(root / "run.sh")
    (root / "empty").mkdir(mode=0o700)
    os.mkfifo(root / "pipe")
    return root


class UploadTests(SandboxFixtures):
    """Tests of `upload`."""

    async def test_a_directory_arrives_with_modes_links_and_odd_names(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        await sandbox.upload(tree(tmp_path / "src"), f"{room}/deep/down")
        assert await listing(sandbox, f"{room}/deep/down") == [
            "empty d 700 0:0",
            "run.sh f 755 0:0",
            "sub d 755 0:0",
            "sub/data.bin f 644 0:0",
            "sub/deep d 755 0:0",
            "sub/deep/name with 'quotes' ü f 644 0:0",
            "sub/link l 777 0:0",
            "twin f 755 0:0",
        ]
        assert await sandbox.read_bytes(f"{room}/deep/down/sub/data.bin") == BINARY
        assert await sandbox.read_bytes(f"{room}/deep/down/sub/link") == b"#!/bin/sh\n"

    async def test_what_arrives_belongs_to_whom_it_is_for(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.upload(tree(tmp_path / "src"), f"{room}/deep/down", user="nobody")
        assert {line.split()[-1] for line in await listing(sandbox, room)} == {"65534:65534"}

    async def test_an_upload_can_leave_out(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        source = tree(tmp_path / "src")
        (source / "sub" / "a.pyc").touch()
        await sandbox.upload(source, f"{room}/up", exclude=["*.pyc", "deep", "empty/"])
        names = [line.split()[0] for line in await listing(sandbox, f"{room}/up")]
        assert names == ["run.sh", "sub", "sub/data.bin", "sub/link", "twin"]

    async def test_an_upload_is_laid_over_what_is_there(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir sub && echo old >sub/data.bin && echo stays >sub/own"])
        await sandbox.upload(tree(tmp_path / "src"), room)
        assert await sandbox.read_bytes(f"{room}/sub/data.bin") == BINARY
        assert await sandbox.read_bytes(f"{room}/sub/own") == b"stays\n"

    async def test_an_upload_through_a_link_lands_where_the_link_leads(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir real && ln -s {room}/real way"])
        await sandbox.upload(tree(tmp_path / "src"), f"{room}/way")
        assert await sandbox.read_bytes(f"{room}/real/sub/data.bin") == BINARY
        assert (await sandbox.exec(["test", "-L", f"{room}/way"])).return_code == 0

    async def test_a_file_is_uploaded_under_the_targets_name(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        (tmp_path / "solve.sh").write_text("echo hi\n")
        (tmp_path / "solve.sh").chmod(0o755)
        await sandbox.upload(tmp_path / "solve.sh", f"{room}/solution/run-me")
        assert await listing(sandbox, f"{room}/solution") == ["run-me f 755 0:0"]

    async def test_an_empty_directory_makes_the_target(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        (tmp_path / "nothing").mkdir()
        await sandbox.upload(tmp_path / "nothing", f"{room}/made", user="nobody")
        assert await listing(sandbox, room) == ["made d 755 65534:65534"]

    async def test_uploading_what_is_not_there_is_an_error_that_names_it(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        with pytest.raises(SandboxError, match="no-such"):
            await sandbox.upload(tmp_path / "no-such", f"{room}/x")

    async def test_a_link_of_the_host_is_not_followed(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("outside")
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "link").symlink_to(tmp_path / "outside")
        await sandbox.upload(tmp_path / "src", f"{room}/up")
        assert (await sandbox.exec(["readlink", f"{room}/up/link"])).stdout == f"{tmp_path}/outside\n"

    async def test_an_upload_stays_inside_whatever_links_were_laid(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (tmp_path / "src" / "sub").mkdir(parents=True)
        (tmp_path / "src" / "sub" / "new").write_text("x")
        await sandbox.exec(["sh", "-c", f"cd {room} && ln -s {outside} way && ln -s ../../../../..{outside} sub"])
        for target in (f"{room}/way", f"{room}/way/deep", room):
            try:
                await sandbox.upload(tmp_path / "src", target)
            except SandboxError:
                continue
        assert list(outside.iterdir()) == []


class DownloadTests(SandboxFixtures):
    """Tests of `download`."""

    async def test_many_files_go_and_come_back_the_same(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        for n in range(MANY):
            (source / f"f{n}").write_bytes(b"%d" % n * (n % 300))
        await sandbox.upload(source, f"{room}/many")
        assert await sandbox.download(f"{room}/many", tmp_path / "back")
        names = sorted(path.name for path in source.iterdir())
        assert filecmp.cmpfiles(source, tmp_path / "back", names, shallow=False) == (names, [], [])
        assert len(list((tmp_path / "back").iterdir())) == MANY

    async def test_a_huge_file_goes_and_comes_back_the_same(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        block = os.urandom(1024 * 1024)
        with (tmp_path / "huge").open("wb") as file:
            for n in range(HUGE // len(block)):
                file.write(b"%08d" % n + block[8:])
        await sandbox.upload(tmp_path / "huge", f"{room}/deep/huge")
        assert await sandbox.download(f"{room}/deep/huge", tmp_path / "back")
        assert filecmp.cmp(tmp_path / "huge", tmp_path / "back", shallow=False)
        await sandbox.control('rm "$1"', f"{room}/deep/huge")
        for name in ("huge", "back"):
            (tmp_path / name).unlink()

    async def test_a_downloaded_directory_is_its_content(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        make = "mkdir sub none && echo a >a && ln a twin && ln -s ../a sub/l && chmod 750 a && chown nobody sub"
        await sandbox.exec(["sh", "-c", f"cd {room} && {make}"])
        assert await sandbox.download(room, tmp_path / "got")
        assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["a", "none", "sub", "twin"]
        assert (tmp_path / "got" / "sub" / "l").read_text() == "a\n"
        assert (tmp_path / "got" / "twin").read_text() == "a\n"
        assert (tmp_path / "got" / "a").stat().st_mode & 0o777 == 0o750
        assert {path.stat().st_uid for path in (tmp_path / "got").rglob("*")} == {os.getuid()}

    async def test_a_download_of_a_single_file_is_that_file(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.write_file(f"{room}/one file", BINARY)
        assert await sandbox.download(f"{room}/one file", tmp_path / "deep" / "two")
        assert (tmp_path / "deep" / "two").read_bytes() == BINARY

    async def test_a_download_follows_the_link_it_is_given(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(
            ["sh", "-c", f"cd {room} && mkdir real && echo x >real/a && ln -s real way && ln -s way/a f"]
        )
        assert await sandbox.download(f"{room}/way", tmp_path / "got")
        assert (tmp_path / "got" / "a").read_text() == "x\n"
        assert await sandbox.download(f"{room}/f", tmp_path / "one")
        assert (tmp_path / "one").read_text() == "x\n" and not (tmp_path / "one").is_symlink()

    async def test_odd_names_arrive_as_they_are(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        names = [b"\xc3\xbc", b"\xff\xfe", b"new\nline", b"-rf", b" ", b"'\"$HOME`", b"x" * 255]
        make = "import os, sys; [open(os.fsencode(sys.argv[1]) + b'/' + bytes.fromhex(n), 'w') for n in sys.argv[2:]]"
        said = await sandbox.exec(["python3", "-c", make, room, *(name.hex() for name in names)])
        assert said.return_code == 0, said.stderr
        assert await sandbox.download(room, tmp_path / "got")
        assert sorted(os.fsencode(path.name) for path in (tmp_path / "got").iterdir()) == sorted(names)

    async def test_a_download_takes_what_nobody_may_read(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir -m 0 d && echo x >d/f && chmod 0 d/f && chown 4321 d d/f"])
        assert await sandbox.download(room, tmp_path / "got")
        assert (tmp_path / "got" / "d" / "f").read_text() == "x\n"

    async def test_a_download_replaces_what_is_there(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && echo new >a"])
        (tmp_path / "got").mkdir()
        (tmp_path / "got" / "a").write_text("a much older text")
        assert await sandbox.download(room, tmp_path / "got")
        assert (tmp_path / "got" / "a").read_text() == "new\n"

    async def test_a_download_of_nothing_says_so(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(["ln", "-s", "/no/such", f"{room}/dangling"])
        for path in ("no", "no/such", "dangling"):
            assert not await sandbox.download(f"{room}/{path}", tmp_path / "got")
            assert not (tmp_path / "got").exists()

    async def test_a_download_can_leave_out(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.exec(["sh", "-c", f"cd {room} && mkdir keep drop && touch keep/a drop/b c.log"])
        await sandbox.download(room, tmp_path / "got", exclude=["drop", "*.log"])
        assert sorted(path.name for path in (tmp_path / "got").rglob("*")) == ["a", "keep"]

    async def test_a_download_never_leaves_its_target(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text(secret := uuid.uuid4().hex)
        lay = (
            f"mkdir d && ln -s {outside} abs && ln -s ../../outside up && ln -s d/../../outside odd && ln -s d ok"
            f" && ln -s {outside}/secret file && mkfifo pipe && echo fine >plain && ln -s plain also"
            "; mknod null c 1 3; mknod disk b 7 0; python3 -c \"import socket; socket.socket(1).bind('sock')\""
        )
        await sandbox.exec(["sh", "-c", f"mkdir {room}/out && cd {room}/out && {lay}"])
        assert await sandbox.download(f"{room}/out", tmp_path / "got")
        assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["also", "d", "ok", "plain"]
        assert [path.name for path in outside.iterdir()] == ["secret"]
        for source in ("abs", "abs/secret", "file", "odd", "up"):
            await sandbox.download(f"{room}/out/{source}", tmp_path / "not" / source)
        got = [path for path in (tmp_path / "not").rglob("*") if path.is_file()]
        assert not [path for path in got if secret in path.read_text()]

    async def test_a_download_of_what_is_no_file_does_not_hang(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        await sandbox.exec(["mkfifo", f"{room}/pipe"])
        for source in (f"{room}/pipe", "/dev/zero"):
            async with asyncio.timeout(PATIENCE):
                try:
                    await sandbox.download(source, tmp_path / "got")
                except SandboxError:
                    continue
        assert not (tmp_path / "got").exists()

    async def test_files_that_change_under_a_download_do_not_break_it(
        self, sandbox: Sandbox, room: str, tmp_path: Path
    ) -> None:
        churn = "while :; do echo line >>log; echo x >a.$$; rm a.$$; mkdir -p d; rmdir d; done"
        busy = sandbox.exec_stream(["sh", "-c", f"echo line >>log; echo begun; {churn}"], cwd=room)
        assert (await anext(busy)).data == b"begun\n"
        for n in range(5):
            assert await sandbox.download(room, tmp_path / f"got{n}")
            assert set((tmp_path / f"got{n}" / "log").read_text().split()) <= {"line", "lin", "li", "l"}
        await busy.aclose()  # type: ignore[attr-defined]

    async def test_files_move_without_tar_and_base64_in_the_image(self, own: Sandbox, tmp_path: Path) -> None:
        await own.exec(["sh", "-c", "rm -f /bin/tar /usr/bin/tar /usr/bin/base64"])
        await own.upload(tree(tmp_path / "src"), "/up", user="nobody")
        await own.write_file("/up/more", BINARY, mode=0o600)
        assert "sub/data.bin f 644 65534:65534" in await listing(own, "/up")
        await own.exec(["ln", "-s", "/up", "/way"])
        assert await own.download("/way", tmp_path / "got")
        assert (tmp_path / "got" / "sub" / "data.bin").read_bytes() == BINARY
        assert (tmp_path / "got" / "more").read_bytes() == BINARY
        assert await own.download("/up/run.sh", tmp_path / "one")
        assert (tmp_path / "one").read_text() == "#!/bin/sh\n"
        assert not await own.download("/nowhere", tmp_path / "none")
