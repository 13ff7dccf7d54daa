"""An agent that takes all it can get: connections, memory, time, log lines. The others are served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from support.gateway_fixture import GatewayFixture, ask, gateway_in, key_header
from support.raw_upstream import DONE, Visit, answer, raw_upstream

from benchflow.gateway import connections, request_body
from benchflow.gateway.budget import MAX_REFUSED_BODIES
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.gateway.sockets import Gateway
from benchflow.llm_apis.value_counts import MAX_VALUES
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until

SOFT_FILES, HARD_FILES = 64, 400


async def answer_done(visit: Visit) -> None:
    await visit.send(answer(DONE))


@pytest_asyncio.fixture
async def small_gateway(tmp_path: Path) -> AsyncIterator[GatewayFixture]:
    """A gateway that may open few files, as on a host whose limits nobody has raised."""
    paths = StatePaths(tmp_path / "state")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_FILES, HARD_FILES))

    command = [sys.executable, "-m", "benchflow.gateway", "--state", str(paths.root)]
    # The limits are of the process from its first instruction on.
    process = await asyncio.to_thread(lambda: subprocess.Popen(command, preexec_fn=limit))
    try:
        await GatewayClient(paths, patience=300).ping()
        async with gateway_in(tmp_path) as gateway:
            yield gateway
    finally:
        process.kill()
        process.wait()


def connect(gateway: GatewayFixture) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(gateway.socket)
    return client


async def test_connections_of_one_peer_do_not_keep_others_from_their_model(small_gateway: GatewayFixture) -> None:
    gateway = small_gateway
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        with ExitStack() as opened:
            for number in range(HARD_FILES):
                client = opened.enter_context(connect(gateway))
                if number % 2:
                    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nX-Half: ")
            assert (await agent.call(stream=False)).status == 200
            # Half of all files are for endpoints, and of the other half no peer may have all.
            assert len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())) < HARD_FILES / 2
    log = (gateway.paths.logs / "gateway.log").read_text()
    assert log.count("requests were refused") == 1, log


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SEC", 0.3)
    monkeypatch.setattr(request_body, "BODY_SEC", 0.3)


@pytest.mark.usefixtures("impatient")
async def test_a_slow_head_or_body_ends_a_connection(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    gateway = Gateway(paths, grace=0.1)
    await gateway.start()
    try:
        async with raw_upstream(answer_done) as upstream, gateway_in(tmp_path) as fixture:
            agent = await fixture.agent("openai-chat", upstream.base_url)
            silent, writer = await asyncio.open_unix_connection(fixture.socket)
            half, half_writer = await asyncio.open_unix_connection(fixture.socket)
            half_writer.write(b"POST / HTTP/1.1\r\nX-Half")
            [(name, value)] = key_header("openai-chat", agent.registration.token).items()
            slow, slow_writer = await asyncio.open_unix_connection(fixture.socket)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\nContent-Length: 100\r\n\r\n{{"
            slow_writer.write(head.encode())
            for reader in (silent, half):
                with pytest.raises(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 60) == b""
                    raise ConnectionResetError
            assert (await asyncio.wait_for(slow.readline(), 60)).startswith(b"HTTP/1.1 408 ")
            # One that is kept open after a call has more time.
            body = json.dumps(ask("openai-chat", stream=False)[1]).encode()
            assert (await agent.post("/chat/completions", body)).status == 200
            assert not any(visit.body != body for visit in upstream.visits)
            for one in (writer, half_writer, slow_writer):
                one.close()
    finally:
        await gateway.stop()


async def test_the_body_of_a_call_that_waits_is_not_read(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        await gateway.client.hold(agent.id)
        body = json.dumps(ask("openai-chat", "x" * 20_000_000, stream=False)[1]).encode()
        [(name, value)] = key_header("openai-chat", agent.registration.token).items()
        reader, writer = await asyncio.open_unix_connection(gateway.socket)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)

        async def is_held() -> bool:
            return (await gateway.client.status(agent.id)).waiting == 1

        await until(is_held)
        assert writer.transport.get_write_buffer_size() > 15_000_000
        await gateway.client.release(agent.id)
        assert (await asyncio.wait_for(reader.readline(), 300)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_malformed_requests_and_those_of_nobody_do_not_fill_the_log(gateway: GatewayFixture) -> None:
    log = gateway.paths.logs / "gateway.log"
    size = log.stat().st_size
    for _ in range(100):
        with connect(gateway) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n" + b"\x00\x01 \r\n\r\n")
            while client.recv(65536):
                pass
    # A traceback has some kilobytes.
    assert log.stat().st_size - size < 20_000


# --- what would not be counted

AMBIGUOUS = {
    "a key twice": b'{"stream": false, "stream": true, "messages": []}',
    "a key in another case": b'{"stream": false, "Stream": true, "messages": []}',
    "no JSON": b'{"stream": true,',
}


@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_a_body_that_could_be_read_in_another_way_reaches_no_endpoint(gateway: GatewayFixture, what: str) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"calls": 1})
        got = await agent.post("/chat/completions", AMBIGUOUS[what])
        assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
        assert not upstream.visits
        # It has used up nothing.
        assert (await agent.call(stream=False)).status == 200
    assert (await agent.answered(2))[0][1]["error"]["kind"] == "unreadable"


async def test_a_response_in_the_background_is_refused(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-responses", upstream.base_url)
        got = await agent.call(stream=False, background=True)
        assert (got.status, "background" in got.json["error"]["message"]) == (400, True)
        assert not upstream.visits
        assert (await agent.call(stream=False, background=False)).status == 200
    assert (await agent.answered(2))[0][1]["error"]["kind"] == "not_allowed"


async def test_tokens_that_an_endpoint_does_not_tell_are_estimated(gateway: GatewayFixture) -> None:
    said = {"choices": [{"index": 0, "message": {"content": "word " * 400}, "finish_reason": "stop"}]}

    async def tell_nothing(visit: Visit) -> None:
        await visit.send(answer(json.dumps(said).encode()))

    async with raw_upstream(tell_nothing) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"output_tokens": 900})
        statuses = [(await agent.call(stream=False)).status for _ in range(3)]
    assert statuses == [200, 200, 402]
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.output_tokens, usage.unmetered) == (1000, 2)
    assert (await agent.answered(3))[0][1]["usage"]["is_estimated"] is True


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_an_answer_of_too_many_values_is_a_failure_and_is_paid(
    gateway: GatewayFixture, content_type: str
) -> None:
    bomb = b'data: {"a":[' + b"[]," * MAX_VALUES + b"[]]}\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(bomb)}\r\n\r\n"

    async def explode(visit: Visit) -> None:
        with contextlib.suppress(ConnectionError):
            await visit.send(head.encode() + bomb)

    async with raw_upstream(explode) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        with pytest.raises(aiohttp.ClientPayloadError):
            await agent.call("Hello. " * 100)
    [(_, response)] = await agent.answered()
    assert (response["error"]["kind"], response["usage"]["is_estimated"]) == ("too_many_values", True)
    usage = (await gateway.client.status(agent.id)).usage
    assert usage.input_tokens > 150
    assert usage.output_tokens > 1_000_000


async def test_after_many_bodies_that_cannot_be_read_none_is_received(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        statuses = {(await agent.post("/chat/completions", b"{")).status for _ in range(MAX_REFUSED_BODIES)}
        assert statuses == {400}
        [(name, value)] = key_header("openai-chat", agent.registration.token).items()
        reader, writer = await asyncio.open_unix_connection(gateway.socket)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\nContent-Length: 9999999\r\n\r\n"
        writer.write(head.encode())
        got = await asyncio.wait_for(reader.read(), 300)
        assert got.startswith(b"HTTP/1.1 400 ") and b"too many requests" in got
        writer.close()
        assert not upstream.visits
    status = await gateway.client.status(agent.id)
    assert [(one.path, one.count) for one in status.refused] == [("/v1/chat/completions", 1)]
    assert len(agent.calls()) == MAX_REFUSED_BODIES


async def test_a_large_request_and_its_large_answer_are_metered_and_recorded(gateway: GatewayFixture) -> None:
    said = json.dumps({"choices": [{"message": {"content": "x" * 3_000_000}, "finish_reason": "stop"}]}).encode()

    async def say_much(visit: Visit) -> None:
        await visit.send(answer(said))

    async with raw_upstream(say_much) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await agent.call("y" * 3_000_000, stream=False)
    assert got.body == said
    [(request, response)] = await agent.answered()
    assert (len(request["request"]["messages"][0]["content"]), response["response"]) == (3_000_000, said.decode())
    assert (await gateway.client.status(agent.id)).usage.output_tokens == 750_000
