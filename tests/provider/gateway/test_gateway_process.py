"""The process: one of them, killed in the middle of calls, ended with grace, started again with all that it knew."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.gateway_fixture import Agent, GatewayFixture, end_gateway, gateway_in
from support.raw_upstream import SSE_HEAD, Visit, chunk, event, raw_upstream

from benchflow.contracts.gateway import Attribution
from benchflow.errors import GatewayUnavailableError
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.gateway.gateway_process import ensure_gateway, is_running, start_gateway, stop_gateway
from benchflow.paths import StatePaths
from benchflow.testing.scripted_model import Reply, ScriptedModel, TokenCounts
from benchflow.testing.waiting import until

HI = Reply(text="Hi", usage=TokenCounts(input=100, output=20), times="always")


@asynccontextmanager
async def gateway_of(grace: float, directory: Path) -> AsyncIterator[tuple[GatewayFixture, subprocess.Popen[bytes]]]:
    """A state directory, and its gateway's process, which gives calls under way so many seconds when it is to end."""
    paths = StatePaths(directory / "state")
    command = [sys.executable, "-m", "benchflow.gateway", "--state", str(paths.root), "--grace", str(grace)]
    process = await asyncio.to_thread(subprocess.Popen, command)
    try:
        assert (await GatewayClient(paths, patience=300).ping()).pid == process.pid
        async with gateway_in(directory) as gateway:
            yield gateway, process
    finally:
        process.kill()
        process.wait()


async def waits(gateway: GatewayFixture, agent: Agent) -> None:
    """Return when a call of the agent's is held back."""

    async def is_held_back() -> bool:
        return (await gateway.client.status(agent.id)).waiting > 0

    await until(is_held_back)


async def stopping(gateway: GatewayFixture) -> bool:
    return (await gateway.client.ping()).stopping


OLDER = (
    "from benchflow.gateway import control; control.PROTOCOL = 0; from benchflow.gateway.__main__ import main; main()"
)


async def test_a_gateway_of_an_older_version_is_replaced_when_no_call_is_under_way(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    command = [sys.executable, "-c", OLDER, "--state", str(paths.root), "--grace", "0"]
    process = await asyncio.to_thread(subprocess.Popen, command)
    try:
        client = GatewayClient(paths, patience=300)
        assert (await client.ping()).pid == process.pid
        (tmp_path / "s").symlink_to(paths.gateway.public)
        gateway = GatewayFixture(paths, tmp_path, client, process.pid, tmp_path / "s")
        with ScriptedModel([Reply(text="Hi", hold="slow"), HI]) as model:
            agent = await gateway.agent("openai-chat", model.openai_base_url, credentials=())
            call = asyncio.create_task(agent.call())
            await model.arrived(1)
            with pytest.raises(GatewayUnavailableError, match="older version"):
                await ensure_gateway(paths)
            model.release("slow")
            assert (await call).status == 200
            assert await client.until_quiet(agent.id, timeout=300)
            assert (await ensure_gateway(paths)).pid != process.pid
            # It knows what the older one knew.
            assert (await agent.call()).status == 200
        await gateway.sessions[0].close()
    finally:
        process.kill()
        process.wait()
        await end_gateway(paths)


async def test_a_killed_gateways_calls_are_ended_in_the_record_by_the_next(gateway: GatewayFixture) -> None:
    with ScriptedModel([Reply(text="Hi", hold="slow"), HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits={"calls": 3})
        await gateway.client.attribute(agent.id, node="n7", role="agent", turn=3)
        call = asyncio.create_task(agent.call("slow"))
        await model.arrived(1)
        await gateway.kill()
        with pytest.raises(aiohttp.ClientError):
            await call
        await gateway.start()
        status = await gateway.client.status(agent.id)
        assert (status.in_flight, status.usage.calls) == (0, 1)
        assert status.attribution == Attribution(node="n7", role="agent", turn=3)
        # The agent does not notice more than a lost connection.
        assert (await agent.call("again")).status == 200
        [(lost, how), (again, _)] = await agent.answered(2)
        assert (how["error"]["kind"], how["status"], how["response"]) == ("gateway_restarted", None, None)
        assert [lost["seq"], again["seq"]] == [0, 1]
        assert (await agent.call()).status == 200
        # What was used before counts.
        assert (await agent.call()).status == 402
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.input_tokens) == (3, 200)


async def test_what_a_killed_gateway_left_half_written_or_spoilt_is_no_trouble(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await agent.call()
        before = agent.record.read_bytes()
        await gateway.kill()
        with agent.record.open("ab") as file:
            file.write(b'{"type": "request", "id": "half')
        spoilt = gateway.paths.gateway.rollouts / "spoilt.json"
        spoilt.write_text("{")
        await gateway.start()
        spoilt.unlink()
        assert agent.record.read_bytes() == before
        assert (await agent.call()).status == 200
    assert [request["seq"] for request, _ in await agent.answered(2)] == [0, 1]
    assert [status.id for status in await gateway.client.statuses()] == [agent.id]


async def test_a_client_waits_for_the_next_gateway_in_which_is_held_and_exhausted_what_was(
    gateway: GatewayFixture,
) -> None:
    with ScriptedModel([HI]) as model:
        poor = await gateway.agent("openai-chat", model.openai_base_url, id="poor", limits={"total_tokens": 120})
        assert [(await poor.call()).status for _ in range(2)] == [200, 402]
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await gateway.client.hold(agent.id)
        await gateway.kill()
        asked = asyncio.create_task(gateway.client.status(poor.id))
        await asyncio.sleep(0)
        assert not asked.done()
        await gateway.start()
        assert (await asked).budget_exhausted == "total_tokens"
        call = asyncio.create_task(agent.call())
        await waits(gateway, agent)
        await gateway.client.release(agent.id)
        assert (await call).status == 200


async def test_a_call_under_way_ends_before_the_process_does(gateway: GatewayFixture) -> None:
    end = asyncio.Event()

    async def wait_for_it(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await end.wait()
        await visit.send(event("two") + chunk(b""))

    async with raw_upstream(wait_for_it) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            await response.content.readany()
            os.kill(gateway.pid, signal.SIGTERM)
            # It takes no more calls, and says so.
            await until(lambda: stopping(gateway))
            end.set()
            assert b"two" in await response.read()
        await until(lambda: not is_running(gateway.paths))
    [(_, response)] = agent.calls()
    assert response is not None and "two" in response["response"]


async def test_a_call_that_does_not_end_in_time_is_cut_off_and_recorded(tmp_path: Path) -> None:
    async def go_on(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await visit.gone.wait()

    async with gateway_of(0.2, tmp_path) as (gateway, process), raw_upstream(go_on) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            await response.content.readany()
            process.terminate()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert await asyncio.to_thread(process.wait, 300) == 0
        [(_, recorded)] = await agent.answered()
        assert recorded["error"]["kind"] == "gateway_stopped"


async def test_neither_a_call_that_is_held_back_nor_an_idle_connection_holds_up_the_end(tmp_path: Path) -> None:
    with ScriptedModel([HI]) as model:
        async with gateway_of(600, tmp_path) as (gateway, _):
            idle = await gateway.agent("openai-chat", model.openai_base_url, id="idle")
            await idle.call()
            agent = await gateway.agent("openai-chat", model.openai_base_url)
            await gateway.client.hold(agent.id)
            call = asyncio.create_task(agent.call())
            await waits(gateway, agent)
            # Sooner than a call under way might end: else this is an error.
            assert await stop_gateway(gateway.paths)
            assert not await stop_gateway(gateway.paths)
            with pytest.raises(aiohttp.ClientError):
                await call
    # It was never made, and the agent will make it again.
    assert agent.lines() == []


async def test_there_is_one_however_many_start_it(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    try:
        found = await asyncio.gather(*(ensure_gateway(paths) for _ in range(2)))
        assert len({info.pid for info in found}) == 1
        # Another one ends by itself, and does no harm.
        assert await asyncio.to_thread(start_gateway(paths).wait, 300) == 0
        assert (await GatewayClient(paths).ping()).pid == found[0].pid
    finally:
        await stop_gateway(paths)


async def test_it_is_found_below_a_directory_with_a_long_name(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    async with gateway_in(directory) as gateway:
        with ScriptedModel([HI]) as model:
            agent = await gateway.agent("openai-chat", model.openai_base_url)
            moved = Path(os.path.relpath(gateway.paths.gateway.public))
            fd = os.open(moved, os.O_PATH)
            agent.session._connector = aiohttp.UnixConnector(path=f"/proc/self/fd/{fd}/gateway.sock")
            assert (await agent.call()).status == 200
            os.close(fd)


async def test_no_gateway_is_an_error_that_may_pass(tmp_path: Path) -> None:
    with pytest.raises(GatewayUnavailableError) as caught:
        await GatewayClient(StatePaths(tmp_path / "state"), patience=0.1).ping()
    assert caught.value.retryable


async def test_registering_again_changes_nothing_and_a_new_token_makes_the_old_one_nobodys(
    gateway: GatewayFixture,
) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await agent.call()
        assert (await gateway.client.register(agent.registration)).usage.calls == 1
        again = await gateway.agent("openai-chat", model.openai_base_url)
        assert (await agent.call()).status == 401
        assert (await again.call()).status == 200
    # The same record goes on.
    assert [request["seq"] for request, _ in await again.answered(2)] == [0, 1]
    assert (await gateway.client.status(agent.id)).usage.calls == 2
