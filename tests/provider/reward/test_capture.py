"""What is brought out of a sandbox to be scored, and a workspace that is put into another one."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import SUPPORT
from support.verified_sandboxes import InDocker, InLocal, sh

from benchflow.contracts.images import ImageConfig
from benchflow.contracts.reward import RewardFuncSpec, RewardTable
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import ArtifactSpec, Task
from benchflow.contracts.verifier import JudgeConfig, VerifierConfig, VerifierDocument
from benchflow.errors import VerifierError
from benchflow.planes.reward.evidence import list_inputs, store_artifacts, store_inputs, store_workspace
from benchflow.planes.reward.placement import put_work, put_workspace
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start
from benchflow.testing.waiting import until

MIB = 1024 * 1024

TREE = r"""
mkdir -p "$1" && cd "$1" && rm -rf .[!.]* *
mkdir -p sub/deep closed 'with space' .hidden empty
long=$(printf 'n%.0s' $(seq 120)); mkdir -p "$long/$long"
echo content >sub/a; echo "$long" >"$long/$long/$long"; echo x >.hidden/.b; echo dash >./-dash; echo y >'with space/ä'
head -c 300000 /dev/zero | tr '\0' z >sub/big; : >sub/none
ln sub/a sub/deep/second-name
ln -s a sub/to-a; ln -s /nowhere/at/all dangling; ln -s sub to-sub; ln -s ../../etc/passwd sub/out
mkfifo pipe
chmod 4755 sub/a; chmod 000 sub/none; chmod 1777 empty; chmod 0 closed; chmod 640 .hidden/.b
chown 1234:4321 sub/a sub; chown 3000000:7 .hidden/.b; chown -h 99:98 dangling; chown 55 .
for each in sub/big sub/deep sub . closed; do touch -d '2001-02-03 04:05:06' "$each"; done
"""
LISTING = r"""
cd "$1"
find . ! -type l -print0 | sort -z | xargs -0 stat -c '%n|%a|%u:%g|%Y|%F|%h' | sed '/^.\/s|/d'
find . -type l | sort | while read -r link; do stat -c '%n|%u:%g' "$link"; readlink "$link"; done
find . -type f -print0 | sort -z | xargs -0 md5sum
"""


async def script(sandbox: Sandbox, text: str, *args: str) -> str:
    said = await sandbox.exec(["sh", "-ec", text, "sh", *args], cwd="/", timeout=600)
    assert said.return_code == 0, (said.stdout, said.stderr)
    return said.stdout


class Moving:
    async def test_a_workspace_is_the_same_in_another_sandbox(
        self, start: Start, tmp_path: Path, image_config: ImageConfig
    ) -> None:
        first, second = await start(workdir="/srv/work"), await start(workdir="/srv/work")
        await script(first, TREE, "/srv/work")
        before = await script(first, LISTING, "/srv/work")
        if not isinstance(self, TestMovingByBusybox):  # it has no Python
            await sh(first, "cd /srv/work && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")
            await sh(first, "touch -d '2001-02-03 04:05:06' /srv/work")
        assert await store_workspace(first, tmp_path, limit_bytes=4 * MIB) == []
        await script(second, "cd /srv/work && mkdir -p .old old && echo x >old/x && ln -s / root && touch ..two")
        await put_workspace(second, tmp_path / "workspace.tar")
        assert await script(second, LISTING, "/srv/work") == before
        for sandbox in (first, second):
            assert await sh(sandbox, "find / -xdev -name '*.tar' -newer /srv/work/sub 2>/dev/null || true") == ""


@pytest.mark.docker
@pytest.mark.long
class TestMovingInDocker(Moving, InDocker):
    pass


@pytest.mark.docker
@pytest.mark.agents
@pytest.mark.long
class TestMovingByBusybox(Moving, InDocker):
    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageConfig]:
        file = SUPPORT / "musl_image.py"
        spec = importlib.util.spec_from_file_location("musl_image", file)
        assert spec is not None and spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with module.musl_image(tmp_path_factory.mktemp("musl") / "image") as reference:
            yield ImageConfig(image=reference)


@pytest.mark.local
class TestKeeping(Moving, InLocal):
    async def test_a_workspace_that_is_too_large_is_given_up_and_stays_so(self, own: Sandbox, tmp_path: Path) -> None:
        said = "the workspace is larger than 1048576 bytes: it is not kept"
        await sh(own, f"truncate -s 100G {own.ref.workdir}/large")
        assert await store_workspace(own, tmp_path, limit_bytes=MIB) == [said]
        await sh(own, f"rm {own.ref.workdir}/large")
        assert await store_workspace(own, tmp_path, limit_bytes=MIB) == [said]
        assert [path.name for path in tmp_path.iterdir()] == ["workspace.json"]

    async def test_a_workspace_is_kept_once(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, f"echo 1 >{own.ref.workdir}/a")
        assert await store_workspace(own, tmp_path, limit_bytes=MIB) == []
        kept = (tmp_path / "workspace.tar").read_bytes()
        await sh(own, f"echo 2 >{own.ref.workdir}/a")
        assert await store_workspace(own, tmp_path, limit_bytes=MIB) == []
        assert (tmp_path / "workspace.tar").read_bytes() == kept

    async def test_whoever_keeps_it_may_be_stopped_in_the_middle(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, f"head -c 50000000 /dev/zero >{own.ref.workdir}/a")
        keeping = asyncio.create_task(store_workspace(own, tmp_path, limit_bytes=100 * MIB))
        await until(lambda: any(path.stat().st_size for path in tmp_path.glob(".workspace-*")), every=0.001)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert list(tmp_path.iterdir()) == []
        assert await store_workspace(own, tmp_path, limit_bytes=100 * MIB) == []
        with tarfile.open(tmp_path / "workspace.tar") as archive:
            assert {member.name: member.size for member in archive if member.isfile()} == {"./a": 50_000_000}

    async def test_a_workspace_that_is_everything_is_not_kept(self, start: Start, tmp_path: Path) -> None:
        [said] = await store_workspace(await start(workdir="/"), tmp_path, limit_bytes=MIB)
        assert "the whole file system" in said

    async def test_an_archive_of_an_agents_reaches_nothing_but_the_workspace(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        with tarfile.open(tmp_path / "bad.tar", "w") as archive:

            def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(b"bad") if info.size else None)

            add("./good")
            add("../bad")
            add("/srv/bad")
            add("x/../../bad")
            add("link", tarfile.SYMTYPE, "/srv")
            add("link/bad")
            add("srv/inner")
            add("srv", tarfile.SYMTYPE, "/srv")
            add("password", tarfile.LNKTYPE, "/etc/passwd")
            add("null", tarfile.CHRTYPE)
            add("good", tarfile.SYMTYPE, "/srv/bad")
        await put_workspace(own, tmp_path / "bad.tar")
        assert (
            await sh(own, f"cd {own.ref.workdir} && find . | sort | tr '\\n' ' '")
            == ". ./good ./link ./srv ./srv/inner "
        )
        assert await sh(own, f"ls /srv; ls {own.ref.workdir}/../bad /bad 2>/dev/null || true") == ""

    async def test_an_artifact_that_lies_in_the_workspace_of_the_room_is_not_lost(
        self, start: Start, tmp_path: Path
    ) -> None:
        first, second = await start(workdir="/srv/work"), await start(workdir="/opt/room")
        # What the agent has made of its workspace does not lead an artifact elsewhere, nor stand in its place.
        await sh(
            first, "cd /srv/work && echo w >kept && echo w >lone && ln -s /srv deep; chmod 6755 kept; chmod 2755 ."
        )
        await sh(first, "mkdir -p /opt/room/deep /opt/other && echo a | tee /opt/room/lone >/opt/room/deep/in")
        declared = [ArtifactSpec(source=path) for path in ("/opt/room/lone", "/opt/room/deep/in", "/opt/other")]
        assert await store_workspace(first, tmp_path, limit_bytes=MIB) == []
        assert await store_artifacts(first, declared, tmp_path, limit_bytes=MIB) == []
        await sh(second, "echo image >/opt/room/old")
        await put_work(second, tmp_path / "workspace.tar", tmp_path)
        found = await sh(second, "cd /opt && find room other ! -type d | sort; cat room/kept room/lone room/deep/in")
        assert found.split() == ["room/deep/in", "room/kept", "room/lone", "w", "a", "a"]
        assert await sh(second, "ls -d /opt/other; ls /srv/in 2>/dev/null || true") == "/opt/other\n"
        # A file comes as data: nobody becomes its owner by running it.
        assert await sh(second, "stat -c %a /opt/room/kept /opt/room") == "755\n2755\n"

    async def test_an_artifact_around_the_workspace_of_the_room_leaves_it_the_workspace(
        self, start: Start, tmp_path: Path
    ) -> None:
        first, second = await start(workdir="/srv/work"), await start(workdir="/srv/out/room")
        await sh(first, "echo w >/srv/work/kept; mkdir -p /srv/out/room; cd /srv/out; echo a | tee around >room/left")
        assert await store_workspace(first, tmp_path, limit_bytes=MIB) == []
        assert await store_artifacts(first, [ArtifactSpec(source="/srv/out")], tmp_path, limit_bytes=MIB) == []
        await put_work(second, tmp_path / "workspace.tar", tmp_path)
        assert await sh(second, "cd /srv/out && find around room | sort | tr '\\n' ' '") == "around room room/kept "

    async def test_an_archive_that_is_none_is_an_error(self, own: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
        for name in ("a.tar", "b.tar"):
            with pytest.raises(VerifierError, match="cannot be read"):
                await put_workspace(own, tmp_path / name)

    async def test_inputs_are_brought_with_what_lies_below_them_once(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, "mkdir -p /srv/out/sub && cd /srv/out && echo a >a && echo b >sub/b && chmod 0 a")
        await sh(own, "ln -s /etc/passwd /srv/out/sub/passwd && ln -s b /srv/out/sub/link && echo c >/srv/c")
        paths = ["/srv/out/a", "/srv/out", "/srv/out/../c", "/srv/none"]
        for _ in range(2):
            notes = await store_inputs(own, paths, tmp_path, limit_bytes=MIB)
            assert notes == ["/srv/none is not there: it cannot be scored by"]
            await sh(own, "echo changed | tee /srv/out/a /srv/c >/srv/none")
        kept = {str(path.relative_to(tmp_path)) for path in (tmp_path / "inputs").rglob("*") if not path.is_dir()}
        assert kept == {"inputs/srv/c", "inputs/srv/out/a", "inputs/srv/out/sub/b", "inputs/srv/out/sub/link"}
        assert (tmp_path / "inputs/srv/out/a").read_text() == "a\n"

    async def test_inputs_beyond_the_limit_and_what_is_no_file_are_warnings(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, "cd /srv && head -c 600 /dev/zero | tee a b >c && mkfifo pipe && truncate -s 100G huge")
        paths = ["/srv/a", "/srv/b", "/srv/huge", "/srv/pipe", "/"]
        notes = await store_inputs(own, paths, tmp_path, limit_bytes=1000)
        assert notes == [
            "/srv/b is larger than the 400 bytes that may still be kept: it is not",
            "/srv/huge is larger than the 400 bytes that may still be kept: it is not",
            "/srv/pipe is neither a file nor a directory: it is not kept",
            "/ is the whole file system: it is not kept",
        ]
        assert [path.name for path in (tmp_path / "inputs/srv").iterdir()] == ["a"]


def task(**fields: Any) -> Task:
    return Task(name="t", layout="native", config_file="task.md", instruction="Do it.", **fields)


def document(strategy: dict[str, Any]) -> VerifierDocument:
    return VerifierDocument.model_validate({"default_strategy": "a", "strategies": {"a": strategy}})


def test_what_scorers_read_of_the_sandbox_is_known_from_the_task() -> None:
    plain = VerifierConfig()
    assert list_inputs(task(), plain, None) == []
    judged = {"type": "llm-judge", "rubric": "r.toml"}
    assert list_inputs(task(verifier_document=document(judged)), plain, None) == ["/app"]
    judged["input_dir"] = "/app/out"
    assert list_inputs(task(verifier_document=document(judged)), plain, None) == ["/app/out"]
    inputs = ["/a", "trajectory/acp_trajectory.jsonl", "/b", "/a"]
    role = {"type": "agent-judge", "role": "r", "isolation": "verifier-only", "inputs": inputs}
    assert list_inputs(task(verifier_document=document(role)), plain, None) == ["/a", "/b"]
    split = VerifierConfig(type="llm-judge", judge=JudgeConfig(input_dir="/work"))
    assert list_inputs(task(), split, "one") == ["/work"]


def test_reward_functions_say_what_they_read() -> None:
    rows = [{"expected": "x", "path": "answer.txt"}, {"expected": "x", "path": "/srv/a"}, {"expected": "x"}]
    funcs = [RewardFuncSpec(type="string-match", name=f"f{n}", options=row) for n, row in enumerate(rows)]
    found = list_inputs(task(reward=RewardTable(funcs=funcs)), VerifierConfig(), None, workspace="/app")
    assert found == ["/app/answer.txt", "/srv/a"]
