"""The helper inside a sandbox: what runs it, what it tells of services and ports, and how it fails."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.state_room import PROVIDERS, Room, by_both, by_the_images

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.errors import StateError, WorldError
from benchflow.paths import StatePaths
from benchflow.planes.environment.helper_interpreter import has_python
from benchflow.planes.environment.observing import observe
from benchflow.planes.environment.world_helper import WorldHelper
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider

_SERVE = r"""
import socket, sys, threading, time
answers = {
    "healthy": b"HTTP/1.1 204 No Content\r\n\r\n",
    "moved": b"HTTP/1.1 302 Found\r\nLocation: http://localhost:1/\r\n\r\n",
    "starting": b"HTTP/1.1 503 No\r\nContent-Length: 12\r\n\r\nnot\nyet  up\n",
    "chunked": b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\noh no\r\n0\r\n\r\n",
    "fading": b"HTTP/1.1 503 No\r\n\r\nnot yet up\n",
    "rude": b"220 mail.example ESMTP\r\n",
    "shut": b"",
    "silent": None,
    "json": b'HTTP/1.1 200 OK\r\n\r\n{"b": [1, 2], "a": "\xc3\xa9"}',
    "spaced": b'HTTP/1.1 200 OK\r\n\r\n{ "a" : "\\u00e9",  "b" : [1,2] }',
    "other": b'HTTP/1.1 200 OK\r\n\r\n{"b": [2, 1], "a": "\xc3\xa9"}',
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nno more",
}
def serve(server, how):
    while True:
        link, _ = server.accept()
        threading.Thread(target=answer, args=(link, how), daemon=True).start()
        how = "silent" if how == "fading" else how
def answer(link, how):
    link.recv(4096)
    said = answers[how]
    if said is None:
        time.sleep(600)
    link.sendall(said)
    if how != "starting":
        link.close()
    else:
        time.sleep(600)
for word in sys.argv[1:]:
    host, port, how = word.split(",")
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, int(port)))
    server.listen()
    threading.Thread(target=serve, args=(server, how), daemon=True).start()
print("serving", flush=True)
time.sleep(600)
"""


async def second_address(room: Room) -> str:
    """The other address of localhost, where the sandbox has one."""
    return "::1" if await room.sh("cat /proc/net/if_inet6 2>/dev/null || true") else "127.0.0.1"


@asynccontextmanager
async def serving(room: Room, *words: str) -> AsyncIterator[None]:
    """Services in the sandbox, each `host,port,how it answers`."""
    chunks = room.sandbox.exec_stream(["python3", "-I", "-S", "-c", _SERVE, *words], cwd="/")
    said = await anext(chunks)
    assert said.data == b"serving\n", said
    try:
        yield
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]


@by_both
async def test_all_targets_are_asked_until_they_are_healthy(room: Room) -> None:
    other = await second_address(room)
    words = ["127.0.0.1,9001,healthy", f"{other},9002,healthy", "127.0.0.1,9003,moved", f"{other},9004,silent"]
    async with serving(room, *words):
        probed = await room.helper.probe(
            http=["http://localhost:9001/health?x=1", "http://localhost:9002", "http://127.0.0.1:9003/"],
            tcp=[9001, 9004],
            deadline=300,
        )
    assert probed.healthy
    assert [(each.target, each.answer) for each in probed.answers] == [
        ("http://localhost:9001/health?x=1", "HTTP 204"),
        ("http://localhost:9002", "HTTP 204"),
        ("http://127.0.0.1:9003/", "HTTP 302"),
        ("tcp://localhost:9001", "connected"),
        ("tcp://localhost:9004", "connected"),
    ]
    assert all(each.seconds is not None and each.seconds < 300 for each in probed.answers)


@by_the_images
async def test_the_last_answer_of_each_target_is_told(room: Room) -> None:
    hows = ["starting", "chunked", "rude", "shut", "silent"]
    async with serving(room, *(f"127.0.0.1,{9001 + n},{how}" for n, how in enumerate(hows))):
        urls = [f"http://localhost:{9001 + n}/health" for n in range(len(hows) + 1)]
        said: list[set[str]] = [set() for _ in urls]
        for _ in range(100):
            probed = await room.helper.probe(http=[*urls, "http://no.such.host.invalid/"], tcp=[9007], deadline=1.0)
            assert not probed.healthy
            *known, unknown, port = (each.answer for each in probed.answers)
            for those, answer in zip(said, known, strict=True):
                those.add(answer)
            # On a busy machine one may not be heard before the deadline: then the answer is that of another probe.
            if all(those != {"timed out"} for how, those in zip(hows, said, strict=False) if how != "silent"):
                break
    assert [those - {"timed out"} or those for those in said] == [
        *({"HTTP 503: not yet up"}, {"HTTP 500: oh no"}, {"no HTTP answer: 220 mail.example ESMTP\r\n"}),
        *({"closed without an answer"}, {"timed out"}, {"connection refused"}),
    ]
    assert unknown and unknown not in ("was not tried", "connected")
    assert port == "connection refused"
    assert {each.seconds for each in probed.answers} == {None}


@by_both
async def test_services_are_asked_for_what_they_show_of_their_state(room: Room) -> None:
    hows = ["json", "spaced", "other", "moved", "cut", "chunked"]
    urls = [f"http://localhost:{9001 + n}/log?n=1" for n in range(len(hows) + 1)]
    async with serving(room, *(f"127.0.0.1,{9001 + n},{how}" for n, how in enumerate(hows))):
        seen = await observe(room.helper, urls, with_bodies=True)
        digests = await observe(room.helper, urls)
    assert [each.url for each in seen] == urls
    json_, spaced, other, moved, cut, chunked, nobody = seen
    assert json_.digest == spaced.digest != other.digest
    assert json.loads(str(json_.body)) == json.loads(str(spaced.body)) == {"a": "é", "b": [1, 2]}
    assert (moved.status, moved.is_comparable) == (302, False)
    assert (chunked.status, chunked.body) == (500, "oh no")
    assert (cut.status, cut.error, nobody.status, nobody.error) == (
        *(None, "the answer was cut short"),
        *(None, "connection refused"),
    )
    assert [each.model_copy(update={"body": None}) for each in seen] == list(digests)


@pytest.mark.long
@by_the_images
async def test_a_try_that_the_deadline_cuts_short_leaves_the_answer_before_it(room: Room) -> None:
    async with serving(room, "127.0.0.1,9001,fading"):
        # Less than a whole try, so that there is only the one that is cut short.
        probed = await room.helper.probe(http=["http://localhost:9001/"], deadline=4.0)
    assert [each.answer for each in probed.answers] == ["HTTP 503: not yet up"]


@by_the_images
async def test_a_service_that_comes_late_is_met_at_once(room: Room) -> None:
    probing = asyncio.create_task(room.helper.probe(http=["http://localhost:9001/"], deadline=300))
    async with serving(room, "127.0.0.1,9001,healthy"):
        probed = await probing
    assert probed.healthy


@by_the_images
async def test_the_wait_is_over_when_a_service_has_ended(room: Room) -> None:
    await room.sh("mkdir /w && touch /w/two.exit")
    probed = await room.helper.probe(tcp=[9001], deadline=600, exits=["/w/one.exit", "/w/two.exit"])
    assert not probed.healthy
    assert probed.ended == ("/w/two.exit",)


@by_both
async def test_who_listens_on_a_port_is_told(room: Room) -> None:
    async with serving(room, "127.0.0.1,9001,healthy", f"{await second_address(room)},9002,healthy"):
        taken = await room.helper.ports_in_use([9001, 9002, 9003])
    assert set(taken) == {9001, 9002}
    assert all(who.startswith("python3 -I") and "pid" in who for who in taken.values())
    assert await room.helper.ports_in_use([9003]) == {}


@by_the_images
async def test_a_request_may_be_larger_than_one_argument(room: Room) -> None:
    await room.sh("mkdir /w && touch /w/exit")
    exits = [f"/w/{'é' * 50}{number}" for number in range(1500)]
    assert (await room.helper.probe(tcp=[9], deadline=60, exits=[*exits, "/w/exit"])).ended == ("/w/exit",)


@by_the_images
async def test_a_helper_that_cannot_run_is_an_error_that_says_so(room: Room) -> None:
    broken = WorldHelper(room.sandbox, "/no/such/program")
    with pytest.raises(WorldError, match="ended with status 127") as failed:
        await broken.ports_in_use([1])
    assert "not found" in str(failed.value.log_tail)
    with pytest.raises(StateError, match="ended with status 127"):
        await broken.ask("snapshot", {}, 5)


@by_the_images
async def test_a_helper_that_does_not_end_is_given_up(room: Room) -> None:
    async with serving(room, "127.0.0.1,9001,silent"):
        request = {"http": [], "tcp": [1], "deadline": 60, "exits": [], "every": 0.02}
        with pytest.raises(WorldError, match="did not end in 1 s"):
            await room.helper.ask("probe", request, 1)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("local", marks=[pytest.mark.local, pytest.mark.long]),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
async def test_the_images_python_is_found_once(where: str, state: Path, base_image: str, tmp_path: Path) -> None:
    provider, paths = make_provider(PROVIDERS[where]), StatePaths(tmp_path / "kept")
    labels = {"benchflow.stack": uuid.uuid4().hex}
    image = ImageRef(reference="host" if where == "local" else base_image)
    try:
        assert await has_python(provider, image, paths, labels=labels)
        file = paths.toolboxes / "python.json"
        (key,) = json.loads(file.read_text())
        file.write_text(json.dumps({key: "no"}))
        assert not await has_python(provider, image, paths, labels=labels), "it is known, and not asked again"
        assert await provider.owned(labels["benchflow.stack"]) == []
    finally:
        await provider.sweep(labels["benchflow.stack"])
        await provider.close()


@pytest.mark.docker
async def test_a_look_that_is_cancelled_while_it_removes_its_sandbox_removes_it(
    state: Path, base_image: str, tmp_path: Path
) -> None:
    removing, enough = asyncio.Event(), asyncio.Event()

    class Provider(DrivenProvider):
        async def remove(self, name: str) -> None:
            removing.set()
            await enough.wait()
            await super().remove(name)

    provider, labels = Provider(DockerDriver()), {"benchflow.stack": uuid.uuid4().hex}
    try:
        image = ImageRef(reference=base_image)
        looking = asyncio.create_task(has_python(provider, image, StatePaths(tmp_path), labels=labels))
        await removing.wait()
        looking.cancel()
        # Not before the cancel has come to where the look waits.
        asyncio.get_running_loop().call_soon(enough.set)
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert await provider.owned(labels["benchflow.stack"]) == []
    finally:
        for left in await provider.owned(labels["benchflow.stack"]):
            await provider.remove(left.name)
        await provider.sweep(labels["benchflow.stack"])
        await provider.close()


@pytest.mark.docker
@pytest.mark.parametrize(
    "step",
    ["find / -name '_sqlite3*.so' -delete", pytest.param("rm -f /usr/bin/python3*", marks=pytest.mark.long)],
)
async def test_an_image_without_python_or_its_sqlite_is_told_from_one_with_them(
    state: Path, base_image: str, tmp_path: Path, step: str
) -> None:
    provider = DrivenProvider(DockerDriver())
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {base_image}\nRUN {step}\n")
    try:
        image = await provider.build(
            ImageConfig(context=str(context), dockerfile=str(context / "Dockerfile"), digest=uuid.uuid4().hex)
        )
        try:
            labels = {"benchflow.stack": uuid.uuid4().hex}
            assert not await has_python(provider, image, StatePaths(tmp_path), labels=labels)
        finally:
            await provider.remove_image(image)
    finally:
        await provider.close()
