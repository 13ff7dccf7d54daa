"""What is captured of an agent's memory in real sandboxes: all of it, whatever it is called and whatever it is."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardFuncError, VerifierError
from benchflow.planes.reward.memory import MemoryCapture, capture_memory, read_memory, store_memory
from benchflow.planes.reward.memory.memory_capture import LIST_LIMIT, TEXT_LIMIT, TEXTS_LIMIT
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, Start

HOME = "/home/agent"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Captures(SandboxFixtures):
    """What holds in every sandbox."""

    async def test_files_are_told_with_their_hashes_sizes_and_texts(self, sandbox: Sandbox, room: str) -> None:
        contents = {
            "a/SKILL.md": b"---\nname: a\n---\nDo it.\n",
            "empty": b"",
            "latin": b"caf\xe9",
            "binary": b"a\0b",
            "no newline": "snow ☃".encode(),
            "large": b"x" * (TEXT_LIMIT + 1),
            "just small": b"y" * TEXT_LIMIT,
        }
        for name, content in contents.items():
            await sandbox.write_file(f"{room}/{name}", content)
        capture = await capture_memory(sandbox, [room], home=HOME)
        assert {path.removeprefix(f"{room}/"): file.sha256 for path, file in capture.files.items()} == {
            name: digest(content) for name, content in contents.items()
        }
        assert all(capture.files[f"{room}/{name}"].size == len(content) for name, content in contents.items())
        told = {path.removeprefix(f"{room}/") for path, file in capture.files.items() if file.text is not None}
        assert told == {"a/SKILL.md", "empty", "no newline", "just small"}
        assert capture.files[f"{room}/no newline"].text == "snow ☃"
        assert capture.is_complete and not capture.cuts and capture.directories == (room,)

    async def test_names_of_any_bytes_stay_apart(self, sandbox: Sandbox, room: str) -> None:
        names = [
            b"new\nline",
            b"ends\n\n",
            b"back\\slash",
            b"\\xff",
            b"\xff",
            b"-n",
            b"--",
            b"$(id)",
            b"'",
            b'"',
            b" ",
            b"*",
        ]
        names += [b"new\\nline", b"cr\rlf", b"tab\t", b"a" * 255, "snow☃".encode()]
        script = (
            "import os,sys\nfor i,n in enumerate(%r): open(os.path.join(os.fsencode(sys.argv[1]),n),'w').write(str(i))"
        )
        made = await sandbox.exec(["python3", "-c", script % names, room])
        assert made.return_code == 0, made.stderr
        capture = await capture_memory(sandbox, [room], home=HOME)
        assert sorted(file.text or "" for file in capture.files.values()) == sorted(map(str, range(len(names))))
        assert all(file.sha256 == digest((file.text or "").encode()) for file in capture.files.values())
        assert capture.files[f"{room}/\\\\xff"].text == "3" and capture.files[f"{room}/\\xff"].text == "4"
        assert MemoryCapture.model_validate_json(capture.model_dump_json()) == capture

    async def test_links_are_told_and_not_followed(self, sandbox: Sandbox, room: str) -> None:
        script = (
            'cd "$1" && mkdir real other && echo secret >other/s && ln -s ../other real/link'
            " && ln -s /etc/passwd real/p && ln -s nowhere real/dangling && ln -s real alias"
            " && mkfifo real/pipe && mknod real/null c 1 3"
        )
        await sandbox.control(script, room)
        capture = await capture_memory(sandbox, [f"{room}/real", f"{room}/alias"], home=HOME)
        assert {path.removeprefix(room): file.link for path, file in capture.files.items()} == {
            "/alias": "real",
            "/real/dangling": "nowhere",
            "/real/link": "../other",
            "/real/p": "/etc/passwd",
        }

    async def test_what_is_not_there_is_said(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.write_file(f"{room}/home/notes/a.md", "a")
        await sandbox.write_file(f"{room}/home/notes.md", "b")
        wanted = ["~/notes", "{home}/notes.md", "~/skills", f"{room}/home/notes/deep", f"{room}/home/notes"]
        capture = await capture_memory(sandbox, wanted, home=f"{room}/home")
        assert set(capture.files) == {f"{room}/home/notes/a.md", f"{room}/home/notes.md"}
        assert capture.directories == tuple(f"{room}/home/{name}" for name in ("notes", "notes.md", "skills"))
        assert capture.missing == (f"{room}/home/skills",)
        nothing = await capture_memory(sandbox, ["~/none"], home=HOME)
        assert nothing.missing == (f"{HOME}/none",) and nothing.files == {}


@pytest.mark.local
class TestOnThisMachine(Captures):
    provider_path = "benchflow.planes.sandbox.local.local_driver:LocalDriver"

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls) -> ImageRef:
        return ImageRef(reference=BARE)

    async def test_thousands_of_files_and_a_huge_one_are_captured(self, sandbox: Sandbox, room: str) -> None:
        made = await sandbox.exec(
            ["python3", "-c", "import sys\nfor i in range(3000): open(f'{sys.argv[1]}/{i:05}','w').write('z'*i)", room]
        )
        assert made.return_code == 0, made.stderr
        await sandbox.control(f"truncate -s 100G {shlex.quote(room)}/huge")
        capture = await capture_memory(sandbox, [room], home=HOME)
        assert len(capture.files) == 3001 and capture.is_complete
        assert all(capture.files[f"{room}/{i:05}"].sha256 == digest(b"z" * i) for i in range(3000))
        assert capture.files[f"{room}/huge"].size == 100 * 2**30
        told = [file.text for file in capture.files.values() if file.text is not None]
        assert 0 < sum(map(len, told)) <= TEXTS_LIMIT and all(text == "z" * len(text) for text in told)
        assert len(capture.cuts) == 2

    async def test_a_list_that_is_too_long_is_not_taken_for_a_whole_one(self, sandbox: Sandbox, room: str) -> None:
        many = LIST_LIMIT // 300
        script = "import sys\nfor i in range(%d): open(f'{sys.argv[1]}/{i:0250}','w').close()"
        made = await sandbox.exec(["python3", "-c", script % many, room])
        assert made.return_code == 0, made.stderr
        capture = await capture_memory(sandbox, [room], home=HOME)
        assert 0 < len(capture.files) < many and not capture.is_complete and capture.cuts

    async def test_secrets_are_taken_out_of_what_is_kept(self, sandbox: Sandbox, room: str, tmp_path: Path) -> None:
        await sandbox.write_file(f"{room}/m.md", "the key is hunter2\n")
        before = await capture_memory(sandbox, [room], home=HOME)
        capture = await capture_memory(sandbox, [room], home=HOME, clean=lambda text: text.replace("hunter2", "[key]"))
        store_memory(before, tmp_path, "before")
        assert "hunter2" not in store_memory(capture, tmp_path, "after").read_text()
        assert read_memory(tmp_path) == (before, capture)
        assert capture.files[f"{room}/m.md"].text == "the key is [key]\n"

    async def test_an_image_without_the_tools_is_an_error(self, start: Start) -> None:
        sandbox = await start()
        assert (await sandbox.exec(["rm", "/usr/bin/find"])).return_code == 0
        with pytest.raises(VerifierError, match="the image has no find"):
            await capture_memory(sandbox, ["/root"], home=HOME)


@pytest.mark.docker
@pytest.mark.long
class TestInDocker(Captures):
    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"


def test_evidence_that_is_missing_or_broken_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RewardFuncError, match="nothing was kept"):
        read_memory(None)
    with pytest.raises(RewardFuncError, match="was not captured before"):
        read_memory(tmp_path)
    whole = MemoryCapture(home="/root", workspace="/app", directories=())
    store_memory(whole, tmp_path, "before")
    with pytest.raises(RewardFuncError, match="was not captured after"):
        read_memory(tmp_path)
    store_memory(whole, tmp_path, "after").write_text('{"home": 1}')
    with pytest.raises(RewardFuncError, match="is no capture"):
        read_memory(tmp_path)
