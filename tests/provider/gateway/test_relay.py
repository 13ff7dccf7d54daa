"""The relay: a port in a sandbox without a network that is the gateway's socket, restarts of the gateway included."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.gateway_fixture import Agent, GatewayFixture
from support.raw_upstream import SSE_HEAD, Visit, chunk, event, raw_upstream

from benchflow.contracts.gateway import RELAY_MOUNT, RELAY_PORT, SOCKET_NAME, agent_base_url
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Mount, Sandbox, SandboxSpec
from benchflow.planes.agent.toolbox import RELAY, Toolbox
from benchflow.planes.agent.toolbox.toolbox_manifest import make_absolute
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from benchflow.testing.scripted_model import Reply, ScriptedModel
from benchflow.testing.waiting import until

HI = Reply(text="Hi", times="always")
KINDS = [
    pytest.param("local", marks=pytest.mark.local),
    pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]),
]
PROVIDERS = {
    "local": "benchflow.planes.sandbox.local.local_driver:LocalDriver",
    "docker": "benchflow.planes.sandbox.docker:DockerDriver",
}
CALL = """
const [url, key, body] = process.argv.slice(2);
const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
const response = await fetch(url, { method: "POST", headers, body });
console.log(response.status, await response.text());
"""
FAST_CLOCKS = """
for (const clock of [Date, performance]) {
  const now = clock.now.bind(clock);
  const start = now();
  clock.now = () => start + (now() - start) * 10_000;
}
"""
"""A program of Node's that is run before another, for which an hour then passes in 0.36 s."""
ELSEWHERE = """
import net from "node:net";
const [host, port] = process.argv.slice(2);
const socket = net.connect({ host, port: Number(port), timeout: 3000 });
socket.on("connect", () => { console.log("reached"); process.exit(0); });
socket.on("timeout", () => { console.log("nothing"); process.exit(0); });
socket.on("error", () => { console.log("nothing"); process.exit(0); });
"""


@asynccontextmanager
async def relay_to(
    gateway: Path, runtime: Toolbox, **env: str
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Run a relay to a socket, on a port of this host."""
    port = _free_port()
    start = make_absolute(runtime.manifest.installed.commands[RELAY], str(runtime.root))
    process = await asyncio.create_subprocess_exec(*start, str(port), str(gateway), env=os.environ | env)
    try:
        await _listening(port, process)
        yield port, process
    finally:
        assert process.returncode is None, "the relay ended by itself"
        process.kill()
        await process.wait()


@pytest_asyncio.fixture
async def relayed(
    gateway: GatewayFixture, runtime: Toolbox
) -> AsyncIterator[tuple[GatewayFixture, int, asyncio.subprocess.Process]]:
    """The gateway, with a relay on a port of this host."""
    async with relay_to(gateway.public / SOCKET_NAME, runtime) as (port, process):
        yield gateway, port, process


@pytest_asyncio.fixture
async def hurried(tmp_path: Path, runtime: Toolbox) -> AsyncIterator[tuple[Path, int]]:
    """A socket at which nobody listens yet, and the port of a relay to it whose clocks are fast."""
    (tmp_path / "clocks.mjs").write_text(FAST_CLOCKS)
    gateway = tmp_path / "s"
    async with relay_to(gateway, runtime, NODE_OPTIONS=f"--import={tmp_path / 'clocks.mjs'}") as (port, _):
        yield gateway, port


def _free_port() -> int:
    """One below those that the kernel gives to whoever asks for any: nobody has it before the relay."""
    while True:
        port = random.randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return process.returncode is not None
        writer.close()
        return True

    await until(answers)


def through(agent: Agent, port: int) -> Agent:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    return Agent(agent.registration, session, agent_base_url(agent.registration.api, port))


@asynccontextmanager
async def agent_at(gateway: GatewayFixture, port: int, base_url: str, **options: Any) -> AsyncIterator[Agent]:
    agent = through(await gateway.agent("openai-chat", base_url, **options), port)
    async with agent.session:
        yield agent


Relayed = tuple[GatewayFixture, int, asyncio.subprocess.Process]


async def test_bytes_go_through_the_relay_as_they_are_and_when_they_are_there(relayed: Relayed) -> None:
    gateway, port, _ = relayed
    seen = asyncio.Event()

    async def one_by_one(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await seen.wait()
        await visit.send(event("two") + chunk(b""))

    async with (
        raw_upstream(one_by_one) as upstream,
        agent_at(gateway, port, upstream.base_url) as agent,
        agent.open_call() as response,
    ):
        assert b"one" in await asyncio.wait_for(response.content.readany(), 300)
        seen.set()
        assert b"two" in await response.read()


@pytest.mark.long
async def test_50_mb_go_through_the_relay(relayed: Relayed) -> None:
    gateway, port, _ = relayed
    text = "0123456789abcdef" * (50 * 2**16)
    with ScriptedModel([HI]) as model:
        async with agent_at(gateway, port, model.openai_base_url) as agent:
            assert (await agent.call(text)).status == 200
    assert model.calls[0].body["messages"][0]["content"] == text


async def test_an_agent_that_leaves_is_noticed_through_the_relay(relayed: Relayed) -> None:
    gateway, port, _ = relayed

    async def go_on(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await visit.gone.wait()

    async with raw_upstream(go_on) as upstream, agent_at(gateway, port, upstream.base_url) as agent:
        call = asyncio.create_task(agent.call())
        await until(lambda: upstream.visits)
        call.cancel()
        assert await gateway.client.until_quiet(agent.id, timeout=300)
        await gateway.client.forget(agent.id)
        await asyncio.wait_for(upstream.visits[0].gone.wait(), 300)
        [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "client_closed"


async def test_a_gateway_that_dies_breaks_off_its_calls_and_the_next_ones_wait_for_another(relayed: Relayed) -> None:
    gateway, port, _ = relayed

    async def go_on(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        if len(upstream.visits) == 1:
            await visit.gone.wait()
        await visit.send(chunk(b""))

    async with raw_upstream(go_on) as upstream, agent_at(gateway, port, upstream.base_url) as agent:
        async with agent.open_call() as response:
            await response.content.readany()
            await gateway.kill()
            with pytest.raises(aiohttp.ClientPayloadError):
                await asyncio.wait_for(response.read(), 300)
        async with aiohttp.ClientSession() as session:
            waiting = asyncio.create_task(Agent(agent.registration, session, agent.base).call())
            # So long that it would have been refused by now.
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await gateway.start()
            assert (await waiting).status == 200


async def count_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the number of bytes that a client has sent, once it has ended its side."""
    writer.write(str(len(await reader.read())).encode())
    writer.close()


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_call_waits_for_the_gateway_however_long_that_is_away(hurried: tuple[Path, int], size: int) -> None:
    gateway, port = hurried
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * size)
    # An hour by the relay's clocks.
    answer = asyncio.ensure_future(reader.read())
    await asyncio.wait([answer], timeout=0.36)
    assert not answer.done()
    async with await asyncio.start_unix_server(count_bytes, gateway):
        writer.write_eof()
        assert await asyncio.wait_for(answer, 300) == str(size).encode()
        writer.close()


async def test_clients_that_have_ended_their_side_are_not_held_for_a_gateway_that_stays_away(
    hurried: tuple[Path, int],
) -> None:
    _, port = hurried
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * 100_000)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 300) == b""
    writer.close()


async def test_one_side_may_be_done_and_still_listen(relayed: Relayed) -> None:
    gateway, port, process = relayed
    # In the gateway's place somebody who answers when all is said.
    await gateway.kill()

    (gateway.public / SOCKET_NAME).unlink()
    async with await asyncio.start_unix_server(count_bytes, gateway.public / SOCKET_NAME):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 3_000_000)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 300) == b"3000000"
        writer.close()
    process.send_signal(signal.SIGHUP)


async def test_100_calls_at_once_go_through_the_relay(relayed: Relayed) -> None:
    gateway, port, _ = relayed
    with ScriptedModel([HI]) as model:
        async with agent_at(gateway, port, model.openai_base_url) as agent:
            got = await asyncio.gather(*(agent.call() for _ in range(100)))
    assert [one.status for one in got] == [200] * 100


# --- in a sandbox


@asynccontextmanager
async def sandbox_at(kind: str, gateway: GatewayFixture, runtime: Toolbox, image: str) -> AsyncIterator[Sandbox]:
    """A sandbox without a network, with the gateway's directory and a relay."""
    provider = make_provider(PROVIDERS[kind])
    stack = uuid.uuid4().hex
    public = Mount(source=str(gateway.paths.gateway.public), target=RELAY_MOUNT, read_only=True)
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=ImageRef(reference="host" if kind == "local" else image),
        labels={"benchflow.stack": stack},
        network_mode="no-network",
        mounts=(runtime.mount, public),
    )
    try:
        sandbox = await provider.start(spec, host_id="host", queue="queue")
        for name, text in (("call", CALL), ("elsewhere", ELSEWHERE)):
            await sandbox.write_file(f"/opt/{name}.mjs", text)
        argv = [*runtime.find_program(RELAY), str(RELAY_PORT), f"{RELAY_MOUNT}/{SOCKET_NAME}"]
        relay = asyncio.ensure_future(sandbox.exec_once("relay", argv, env={}, cwd="/", user="root"))
        yield sandbox
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    finally:
        await provider.remove(spec.name)
        await provider.sweep(stack)
        await provider.close()


async def in_sandbox(sandbox: Sandbox, runtime: Toolbox, *argv: str) -> str:
    """What a program of Node's says, run by somebody without rights."""
    done = await sandbox.exec([*runtime.find_program("node"), *argv], user="nobody")
    assert done.return_code == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sandbox_without_a_network_reaches_its_model_and_nothing_else(
    kind: str, gateway: GatewayFixture, runtime: Toolbox, base_image: str
) -> None:
    with ScriptedModel([HI], host="0.0.0.0") as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        body = json.dumps({"model": "scripted", "messages": [], "tools": [{"function": {"name": "x"}}]})
        arguments = (f"{agent_base_url('openai-chat')}/chat/completions", agent.registration.token, body)
        async with sandbox_at(kind, gateway, runtime, base_image) as sandbox:
            await _relay_listens(sandbox)
            said = await in_sandbox(sandbox, runtime, "/opt/call.mjs", *arguments)
            assert said.startswith("200 ") and '"Hi"' in said
            # The gateway comes back under the same name in the same directory.
            await gateway.kill()
            await gateway.start()
            said = await in_sandbox(sandbox, runtime, "/opt/call.mjs", *arguments)
            assert said.startswith("200 ") and '"Hi"' in said
            wrong = (arguments[0], "bfg-" + "0" * 48, body)
            assert (await in_sandbox(sandbox, runtime, "/opt/call.mjs", *wrong)).startswith("401 ")
            port = str(model.port)
            assert await in_sandbox(sandbox, runtime, "/opt/elsewhere.mjs", "127.0.0.1", port) == "nothing"
            # The directory is read-only, and has the socket and nothing else.
            listed = await sandbox.control('ls -A "$1"; touch "$1/x" 2>/dev/null && echo written', RELAY_MOUNT)
            assert listed.stdout.split() == [SOCKET_NAME]
    assert len(model.main_calls) == 2


async def _relay_listens(sandbox: Sandbox) -> None:
    """Until something listens on the port, as the kernel tells."""
    port = f":{RELAY_PORT:04X} "

    async def listens() -> bool:
        return port in (await sandbox.control("cat /proc/net/tcp")).stdout

    await until(listens)
