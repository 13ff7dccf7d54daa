"""A session in a sandbox of a daemon elsewhere: nothing is mounted, and its files here are still the same as there.

Run as a program it is a worker: it takes one turn over through a mirror, and prints how the turn ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio
from support.acp_room import CWD, PATIENT, USER, Room, take_turn

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import SandboxRef, SandboxSpec
from benchflow.errors import SandboxLostError
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.acp.mirror import Mirror
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import Message, SessionFiles
from benchflow.planes.agent.toolbox import PUMP, Toolbox, build_toolbox_image
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.testing.waiting import until

docker_only = pytest.mark.docker


# --- a daemon elsewhere ----------------------------------------------------------------------------------


class Forwarder:
    """Takes TCP connections to the daemon's socket; `cut` breaks those that are open."""

    def __init__(self) -> None:
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection("/var/run/docker.sock")
        self._open |= {writer, there[1]}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pass_on(reader, there[1]), _pass_on(there[0], writer))
        for end in (writer, there[1]):
            end.close()
            self._open.discard(end)

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@pytest_asyncio.fixture
async def elsewhere(state: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder()
    server = await asyncio.start_server(forwarder.take, "127.0.0.1", 0)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield forwarder
    server.close()
    await forwarder.close()


@pytest_asyncio.fixture
async def provider(elsewhere: Forwarder) -> AsyncIterator[DrivenProvider]:
    made = DrivenProvider(DockerDriver())
    yield made
    await made.close()


@pytest.fixture(scope="module")
def built() -> Iterator[dict[str, ImageRef]]:
    """The images of all tests here, as soon as one of them has built them; removed in the end."""
    images: dict[str, ImageRef] = {}
    yield images
    client = docker.from_env()
    for image in reversed(images.values()):
        client.images.remove(image.reference, force=True)
    client.close()


@pytest_asyncio.fixture
async def plain(
    provider: DrivenProvider, base_image: str, built: dict[str, ImageRef], tmp_path_factory: pytest.TempPathFactory
) -> ImageRef:
    """An image with a directory and an entrypoint of its own."""
    if "plain" not in built:
        context = tmp_path_factory.mktemp("plain")
        (context / "Dockerfile").write_text(f'FROM {base_image}\nWORKDIR /some/where\nENTRYPOINT ["/usr/bin/env"]\n')
        built["plain"] = await provider.build(ImageConfig(context=str(context), digest=uuid.uuid4().hex))
    return built["plain"]


@pytest_asyncio.fixture
async def image(provider: DrivenProvider, runtime: Toolbox, plain: ImageRef, built: dict[str, ImageRef]) -> ImageRef:
    """The same with the runtime in it."""
    if "image" not in built:
        built["image"] = await build_toolbox_image(provider, plain, [runtime.mount])
    return built["image"]


@pytest_asyncio.fixture
async def room(provider: DrivenProvider, image: ImageRef, runtime: Toolbox, tmp_path: Path) -> AsyncIterator[Room]:
    stack = uuid.uuid4().hex
    wire = Wire(SessionFiles.from_directory(tmp_path / "agent"))
    wire.make()
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=image,
        labels={"benchflow.stack": stack},
        network_mode="no-network",
    )
    try:
        sandbox = await provider.start(spec, host_id="host", queue="queue")
        await sandbox.control('mkdir -p "$1" && chown "$2" "$1"', CWD, USER)
        yield Room(sandbox, wire, runtime.find_program(PUMP))
    finally:
        await provider.remove(spec.name)
        await provider.sweep(stack)


async def there(room: Room, name: str) -> bytes:
    return await room.sandbox.read_bytes(f"{RUN_DIRECTORY}/{name}")


def here(room: Room, name: str) -> bytes:
    return (room.wire.files.shared / name).read_bytes()


def mirror_of(room: Room) -> Mirror:
    return Mirror(room.sandbox, room.wire)


# --- the image -------------------------------------------------------------------------------------------


@pytest.mark.long
@docker_only
async def test_a_daemon_elsewhere_mounts_nothing_and_its_image_has_the_toolboxes(
    provider: DrivenProvider, image: ImageRef, room: Room, runtime: Toolbox
) -> None:
    assert not provider.capabilities().mounts
    ran = await room.sandbox.exec([*runtime.find_program("node"), "--version"], user=USER)
    assert ran.stdout.strip() == f"v{runtime.manifest.installed.runtime.split()[1]}"
    written = await room.sandbox.exec(["touch", f"{runtime.mount_path}/bin/mine"], user=USER)
    assert "Permission denied" in written.stderr


@docker_only
async def test_an_image_with_toolboxes_is_built_once_and_keeps_what_it_was(
    provider: DrivenProvider, plain: ImageRef, image: ImageRef, runtime: Toolbox
) -> None:
    assert await build_toolbox_image(provider, plain, [runtime.mount]) == image
    assert image.reference != plain.reference
    assert image.workdir == "/some/where"


async def test_without_toolboxes_an_image_is_what_it_was(state: Path) -> None:
    image = ImageRef(reference="some:image")
    assert await build_toolbox_image(DrivenProvider(DockerDriver()), image, []) == image


# --- a turn ----------------------------------------------------------------------------------------------


@docker_only
async def test_a_turn_goes_through_a_mirror_and_both_sides_are_equal(room: Room) -> None:
    options = [["no", "reject_once"], ["yes", "allow_once"]]
    async with mirror_of(room) as mirror:
        agent = await mirror.await_work(
            room.open(
                {"ask": "may I?", "options": options, "record": "record"},
                {"repeat": 300, "do": [{"say": "update {i}"}]},
                {"flood": 3_000_000},
                {"stderr": "a word", "times": 3},
                {"exit": 3},
            )
        )
        with pytest.raises(Exception, match="exit status 3") as caught:
            await mirror.await_work(agent.prompt())
    assert type(caught.value).__name__ == "AgentExitError"
    assert "a word" in str(caught.value)
    assert await room.recorded() == ["yes"]
    assert agent.texts()[:300] == [f"update {number}" for number in range(300)]
    for name in ("in", "out", "err", "exit"):
        assert here(room, name) == await there(room, name)


@docker_only
@pytest.mark.long
@pytest.mark.parametrize("times", [1, 3])
async def test_what_breaks_is_taken_up_again(room: Room, elsewhere: Forwarder, times: int) -> None:
    actions: list[Message] = [{"say": "part 0"}]
    for number in range(times):
        updates = {"repeat": 100, "do": [{"say": "update {i}"}]}
        actions += [{"wait_for": f"gate-{number}"}, updates, {"say": f"part {number + 1}"}]
    async with mirror_of(room) as mirror:
        agent = await room.open(*actions)
        turn = asyncio.create_task(mirror.await_work(agent.prompt()))
        for number in range(times):
            await _until_said(room, f"part {number}".encode())
            elsewhere.cut()
            await room.tell(f"gate-{number}")
        assert (await turn).stop_reason == "end_turn"
    said = [[*(f"update {number}" for number in range(100)), f"part {part + 1}"] for part in range(times)]
    assert agent.texts() == ["part 0", *(text for part in said for text in part)]


@docker_only
async def test_who_waits_hears_that_the_sandbox_is_gone(room: Room, provider: DrivenProvider) -> None:
    async with mirror_of(room) as mirror:
        agent = await room.open({"say": "first"}, {"wait_for": "go"})
        turn = asyncio.create_task(mirror.await_work(agent.prompt()))
        await _until_said(room, b"first")
        await provider.remove(room.sandbox.ref.name)
        with pytest.raises(SandboxLostError):
            await turn


@docker_only
@pytest.mark.long
async def test_two_mirrors_at_once_double_nothing(room: Room) -> None:
    async with mirror_of(room) as mirror, mirror_of(room), mirror_of(room):
        agent = await room.open({"repeat": 300, "do": [{"say": "update {i}"}]})
        await mirror.await_work(agent.prompt())
    assert agent.texts() == [f"update {number}" for number in range(300)]
    assert here(room, "out") == (await there(room, "out"))[: len(here(room, "out"))]
    assert [message["id"] for message in await room.received() if "method" in message] == [
        "initialize",
        "new",
        "prompt-0",
    ]


@docker_only
async def test_a_line_that_a_crash_cut_in_half_over_there_is_mended(room: Room) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": "a", "method": "m", "params": {"text": "x" * 10_000}}).encode() + b"\n"
    async with mirror_of(room):
        pass
    await room.sandbox.write_file(f"{RUN_DIRECTORY}/in", line[:6000], mode=0o600)
    room.wire.sent.file.write_bytes(line + line + b'{"half')
    async with mirror_of(room):
        await _until_there(room, line + line)


@pytest.mark.long
@docker_only
async def test_a_turn_outlives_the_worker_that_followed_it(room: Room) -> None:
    part: Message = {"repeat": 100, "do": [{"say": "update {i}"}]}
    async with mirror_of(room):
        agent = await room.open(part, {"wait_for": "gate"}, part, {"ask": "may I?", "record": "record"})
    async with worker(room, agent.id):
        await _until_said(room, b"update 40")
    await room.tell("gate")
    async with worker(room, agent.id) as last:
        said, _ = await last.communicate()
    assert json.loads(said)["stop_reason"] == "end_turn"
    assert here(room, "out") == await there(room, "out")
    heard = [json.loads(raw) for raw in here(room, "out").splitlines()]
    updates = [line["params"]["update"] for line in heard if line.get("method") == "session/update"]
    texts = [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
    assert texts == [f"update {number}" for number in range(100)] * 2
    assert await room.recorded() == ["allow"]
    assert len([message for message in await room.received() if message.get("method") == "session/prompt"]) == 1


async def test_what_is_here_already_is_not_appended_again(tmp_path: Path) -> None:
    wire = Wire(SessionFiles.from_directory(tmp_path))
    wire.make()
    wire.append("out", 0, b"0123")
    wire.append("out", 2, b"2345")
    wire.append("out", 0, b"012")
    assert (wire.files.shared / "out").read_bytes() == b"012345"


async def _until_said(room: Room, word: bytes) -> None:
    await until(lambda: word in here(room, "out"))


async def _until_there(room: Room, content: bytes) -> None:
    async def is_there() -> bool:
        return await there(room, "in") == content

    await until(is_there)


# --- the worker that is killed ---------------------------------------------------------------------------


@asynccontextmanager
async def worker(room: Room, session: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that drives the turn; killed at the end, wherever it is then."""
    job = {
        "ref": room.sandbox.ref.model_dump(mode="json"),
        "files": str(room.wire.files.shared.parent),
        "session": session,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, json.dumps(job)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _work(job: dict[str, Any]) -> None:
    provider = DrivenProvider(DockerDriver())
    sandbox = await provider.attach(SandboxRef.model_validate(job["ref"]))
    room = Room(sandbox, Wire(SessionFiles.from_directory(Path(job["files"]))), ())
    session = Dialogue(room.wire, Client(sandbox, user=USER, cwd=CWD))
    lines: list[Message] = []
    async with mirror_of(room) as mirror:
        turn = await mirror.await_work(
            take_turn(session, "prompt-0", job["session"], lines.extend, PATIENT, room.process)
        )
    print(json.dumps({"stop_reason": turn.stop_reason}), flush=True)
    await provider.close()


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
