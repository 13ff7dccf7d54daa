"""Upstreams that stall, close early or talk nonsense, and agents that leave: told as it is, and recorded."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from support.gateway_fixture import APIS, GatewayFixture
from support.raw_upstream import JSON_HEAD, SSE_HEAD, Visit, answer, chunk, event, raw_upstream

from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model import Reply, ScriptedModel
from benchflow.testing.waiting import until

ONCE = {"max_retries": 0}
FEW = 3


def base_url(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_breaks_off_breaks_off_for_the_agent_too(gateway: GatewayFixture, api: Api) -> None:
    reply = Reply(text="a long text " * 20, fault={"kind": "truncate", "after": FEW})
    with ScriptedModel([reply]) as model:
        agent = await gateway.agent(api, base_url(model, api))
        async with agent.open_call() as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
    [(_, response)] = await agent.answered()
    assert (response["status"], response["error"]["kind"], response["finish_reason"]) == (200, "truncated", None)
    # What the agent had before is in the record.
    assert response["response"].count("data:") == FEW


async def test_a_whole_answer_that_is_cut_short_is_never_taken_for_whole(gateway: GatewayFixture) -> None:
    async def cut(visit: Visit) -> None:
        await visit.send(JSON_HEAD + b'Content-Length: 1000\r\n\r\n{"choices"')

    async with raw_upstream(cut) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call(stream=False) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
    [(_, response)] = await agent.answered()
    assert (response["error"]["kind"], response["response"]) == ("truncated", '{"choices"')


@pytest.mark.parametrize("api", APIS)
async def test_garbage_goes_through_and_is_recorded_as_no_whole_answer(gateway: GatewayFixture, api: Api) -> None:
    with ScriptedModel([Reply(text="a long text " * 20, fault={"kind": "garbage", "after": FEW})]) as model:
        agent = await gateway.agent(api, base_url(model, api))
        got = await agent.call()
    assert got.status == 200
    assert got.body.endswith(b"\x00<html>not a model</html>")
    [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "incomplete"
    assert response["response"].encode() == got.body
    status = await gateway.client.status(agent.id)
    assert (status.in_flight, status.usage.calls) == (0, 1)


async def test_what_is_no_http_is_unreachable(gateway: GatewayFixture) -> None:
    async def talk(visit: Visit) -> None:
        await visit.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    async with raw_upstream(talk) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries=ONCE)
        got = await agent.call()
    assert (got.status, got.json["error"]["type"]) == (502, "server_error")
    assert (await agent.answered())[0][1]["error"]["kind"] == "unreachable"


async def test_a_stall_before_the_first_byte_is_ended_and_said(gateway: GatewayFixture) -> None:
    async def say_nothing(visit: Visit) -> None:
        await visit.gone.wait()

    async with raw_upstream(say_nothing) as upstream:
        agent = await gateway.agent("anthropic-messages", upstream.base_url, stall_sec=0.3)
        got = await agent.call()
        assert (got.status, got.json["error"]["type"]) == (504, "timeout_error")
        await until(lambda: upstream.visits)
        await asyncio.wait_for(upstream.visits[0].gone.wait(), 300)
    assert len(upstream.visits) == 1
    assert (await agent.answered())[0][1]["error"]["kind"] == "stalled"


async def test_a_stall_in_the_middle_is_ended_and_never_taken_for_an_end(gateway: GatewayFixture) -> None:
    async def stall(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await visit.gone.wait()

    async with raw_upstream(stall) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, stall_sec=1.5)
        async with agent.open_call() as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await asyncio.wait_for(upstream.visits[0].gone.wait(), 300)
    [(_, response)] = await agent.answered()
    assert (response["error"]["kind"], "one" in response["response"]) == ("stalled", True)
    assert (await gateway.client.status(agent.id)).in_flight == 0


async def test_slow_is_not_stalled(gateway: GatewayFixture) -> None:
    async def dawdle(visit: Visit) -> None:
        await visit.send(SSE_HEAD)
        for number in range(20):
            await asyncio.sleep(0.1)
            await visit.send(event(str(number)))
        await visit.send(chunk(b""))

    async with raw_upstream(dawdle) as upstream:
        # Much longer than each pause, whatever else the machine does, and shorter than all of them.
        agent = await gateway.agent("openai-chat", upstream.base_url, stall_sec=1.5)
        assert (await agent.call()).body.count(b"data:") == 20


@pytest.mark.parametrize("begun", [True, False], ids=["in the middle", "before the first byte"])
async def test_when_an_agent_has_left_an_upstream_that_says_nothing_more_is_given_up(
    gateway: GatewayFixture, begun: bool
) -> None:
    async def go_on(visit: Visit) -> None:
        if begun:
            await visit.send(SSE_HEAD + event("one"))
        await visit.gone.wait()

    async with raw_upstream(go_on) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, stall_sec=2)

        async def is_under_way() -> bool:
            return (await gateway.client.status(agent.id)).in_flight == 1

        call = asyncio.create_task(agent.call())
        await until(lambda: upstream.visits)
        if begun:
            await until(lambda: agent.lines())
            # The first event is there when its request has been recorded and answered.
            await until(is_under_way)
        call.cancel()
        await asyncio.wait_for(upstream.visits[0].gone.wait(), 300)
        assert await gateway.client.until_quiet(agent.id)
    [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "client_closed"


async def test_an_agent_that_leaves_when_it_has_read_the_end_has_its_answer(gateway: GatewayFixture) -> None:
    end = chunk(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')

    async def say_and_stay(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one") + end)
        await visit.gone.wait()

    async with raw_upstream(say_and_stay) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, stall_sec=1)
        async with agent.open_call() as response:
            said = b""
            while b"stop" not in said:
                said += await response.content.readany()
        assert await gateway.client.until_quiet(agent.id)
    [(_, recorded)] = await agent.answered()
    assert (recorded["error"], recorded["finish_reason"]) == (None, "stop")
    assert recorded["response"].encode() == said


async def test_an_agent_that_reads_slowly_slows_the_upstream_and_fills_no_memory(gateway: GatewayFixture) -> None:
    piece = chunk(b"data: " + b"x" * 65536 + b"\n\n")
    sent = 0

    async def flood(visit: Visit) -> None:
        nonlocal sent
        await visit.send(SSE_HEAD)
        while not visit.gone.is_set() and sent < 600:
            await visit.send(piece)
            sent += 1

    async with raw_upstream(flood) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            await response.content.readany()
            before = -1
            # Until it stands still.
            while sent != before:
                before = sent
                await asyncio.sleep(0.5)
            assert sent < 400
    [(_, recorded)] = await agent.answered()
    assert recorded["error"]["kind"] == "client_closed"


async def test_an_error_in_the_middle_of_a_stream_is_its_end(gateway: GatewayFixture) -> None:
    body = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"later"}}\n\n'

    async def fail(visit: Visit) -> None:
        await visit.send(SSE_HEAD + chunk(body) + chunk(b""))

    async with raw_upstream(fail) as upstream:
        agent = await gateway.agent("anthropic-messages", upstream.base_url)
        assert (await agent.call()).body == body
    [(_, response)] = await agent.answered()
    assert (response["finish_reason"], response["error"]) == ("error", None)


async def test_one_upstreams_trouble_is_not_anothers(gateway: GatewayFixture) -> None:
    async def say_nothing(visit: Visit) -> None:
        await visit.gone.wait()

    async with raw_upstream(say_nothing) as silent:
        stuck = await gateway.agent("openai-chat", silent.base_url, id="stuck")
        calls = [asyncio.create_task(stuck.call()) for _ in range(50)]
        await until(lambda: len(silent.visits) == 50)
        with ScriptedModel([Reply(text="Hi", times="always")]) as model:
            free = await gateway.agent("openai-chat", model.openai_base_url, id="free")
            assert (await free.call()).status == 200
        for call in calls:
            call.cancel()


async def test_a_broken_request_breaks_nothing(gateway: GatewayFixture) -> None:
    async def say(visit: Visit) -> None:
        await visit.send(answer(b"{}"))

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        for nonsense in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
            reader, writer = await asyncio.open_unix_connection(gateway.socket)
            writer.write(nonsense)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert (await agent.call()).status == 200
