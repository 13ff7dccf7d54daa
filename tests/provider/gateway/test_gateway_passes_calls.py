"""Calls go through as they are: byte for byte, unbuffered, in every dialect, with the real key in the token's place."""

from __future__ import annotations

import asyncio
import gzip
import json
import re

import pytest
from support.gateway_fixture import APIS, KEY, GatewayFixture, ask, key_header
from support.raw_upstream import SSE_HEAD, Visit, chunk, event, raw_upstream
from yarl import URL

from benchflow import secrets
from benchflow.contracts.gateway import Api
from benchflow.testing.scripted_model import Reply, ScriptedModel, TokenCounts, ToolUse

REPLY = Reply(
    text="Grüße 👋, and a long enough text to be sent in many pieces.",
    thinking="The user wants a greeting.",
    tools=(ToolUse(name="run", arguments={"command": "ls"}, id="call_1"),),
    usage=TokenCounts(input=900, output=12, cached=800, reasoning=4),
    times="always",
)
HI = Reply(text="Hi", times="always")


def base_url(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


def alike(body: bytes) -> bytes:
    """An answer of the scripted model but for the number of the call, and the time."""
    return re.sub(rb'("created(_at)?": ?)\d+', rb"\g<1>0", body).replace(b"scripted0001", b"scripted0000")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_is_the_upstreams_byte_for_byte(gateway: GatewayFixture, api: Api, stream: bool) -> None:
    with ScriptedModel([REPLY]) as model:
        agent = await gateway.agent(api, base_url(model, api))
        direct = await gateway.direct(agent)
        through, plain = await agent.call(stream=stream), await direct.call(stream=stream)
    assert through.status == plain.status == 200
    assert alike(through.body) == alike(plain.body)
    same = ("content-type", "transfer-encoding", "content-length", "cache-control")
    assert [through.headers.get(name) for name in same] == [plain.headers.get(name) for name in same]
    first, second = model.calls
    assert (first.path, first.query, first.body) == (second.path, second.query, second.body)
    [(request, response)] = await agent.answered()
    assert response["response"].encode() == through.body
    assert request["request"] == first.body


@pytest.mark.parametrize("api", APIS)
async def test_the_upstream_gets_the_real_key_and_never_the_token(gateway: GatewayFixture, api: Api) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent(api, base_url(model, api))
        await agent.call()
    [call] = model.calls
    [(name, value)] = key_header(api, KEY).items()
    assert call.headers[name.lower()] == value
    assert agent.registration.token not in str(call.headers) + call.query


async def test_a_key_in_the_query_is_a_header_upstream(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("gemini", model.base_url)
        path, body = ask("gemini")
        url = URL(agent.url(f"{path}&key={agent.registration.token}&z=%2Fa"), encoded=True)
        async with agent.session.post(url, json=body) as response:
            assert response.status == 200
    # What the list does not name is left out.
    assert (model.calls[0].query, model.calls[0].headers["x-goog-api-key"]) == ("alt=sse", KEY)
    assert agent.calls()[0][0]["path"] == "/v1beta/models/scripted:streamGenerateContent?alt=sse"


async def test_the_other_kind_of_anthropic_key_is_a_bearers(gateway: GatewayFixture) -> None:
    secrets.store_secrets(gateway.paths, "job/other", set(), {"ANTHROPIC_AUTH_TOKEN": KEY})
    with ScriptedModel([HI]) as model:
        names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        agent = await gateway.agent("anthropic-messages", model.base_url, credentials=names)
        moved = agent.registration.model_copy(update={"job_id": "job/other"})
        await gateway.client.register(moved)
        assert (await agent.call()).status == 200
    assert model.calls[0].headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in model.calls[0].headers


async def test_an_endpoint_without_keys_gets_none(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, credentials=())
        assert (await agent.call()).status == 200
    assert "authorization" not in model.calls[0].headers


async def test_a_key_that_is_not_set_is_said_in_the_dialects_shape(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url, credentials=("NOWHERE_SET",))
        got = await agent.call()
    assert (got.status, got.json["error"]["type"]) == (401, "authentication_error")
    assert "NOWHERE_SET" in got.json["error"]["message"]
    assert not model.calls
    assert (await agent.answered())[0][1]["error"]["kind"] == "missing_secret"


async def test_headers_of_the_agent_go_on_but_for_those_of_its_connection(gateway: GatewayFixture) -> None:
    path, body = ask("anthropic-messages")
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url)
        sent = {"anthropic-beta": "a,b", "user-agent": "agent/1", "accept-encoding": "gzip, br", "x-hop": "1"}
        await agent.post(path, json.dumps(body).encode(), connection="x-hop", **sent)
    headers = model.calls[0].headers
    assert (headers["anthropic-beta"], headers["user-agent"]) == ("a,b", "agent/1")
    # What comes back is recorded as text.
    assert headers["accept-encoding"] == "identity"
    assert "x-hop" not in headers
    assert headers["host"] == model.base_url.removeprefix("http://")


async def test_an_event_is_there_before_the_upstream_has_sent_the_next(gateway: GatewayFixture) -> None:
    seen = asyncio.Event()

    async def one_by_one(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))
        await asyncio.wait_for(seen.wait(), 300)
        await visit.send(event("two") + chunk(b""))

    async with raw_upstream(one_by_one) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            assert b"one" in await asyncio.wait_for(response.content.readany(), 300)
            seen.set()
            assert b"two" in await response.read()


async def test_the_head_is_there_before_the_first_byte_of_the_body(gateway: GatewayFixture) -> None:
    seen = asyncio.Event()

    async def head_first(visit: Visit) -> None:
        await visit.send(SSE_HEAD)
        await asyncio.wait_for(seen.wait(), 300)
        await visit.send(event("one") + chunk(b""))

    async with raw_upstream(head_first) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            assert response.status == 200
            seen.set()
            assert b"one" in await response.read()


async def test_requests_of_an_agents_own_record_are_passed_on_as_calls(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        requests = ("GET /v1/models", "POST /v1/nowhere")
        agent = await gateway.agent("openai-chat", model.openai_base_url, requests=requests, limits={"calls": 2})
        auth = key_header("openai-chat", agent.registration.token)
        async with agent.session.get(agent.url("/models"), headers=auth) as response:
            assert [entry["id"] for entry in (await response.json())["data"]] == ["scripted"]
        got = [await agent.post("/nowhere", b"not JSON") for _ in range(2)]
    assert [one.status for one in got] == [404, 402]
    assert [call.path for call in model.calls] == ["/v1/models", "/v1/nowhere"]
    assert model.calls[0].headers["authorization"] == f"Bearer {KEY}"
    (listed, _), (unknown, answer), _ = await agent.answered(3)
    assert (listed["api"], listed["method"], listed["request"]) == ("other", "GET", None)
    assert (unknown["api"], unknown["request_text"], answer["status"]) == ("other", "not JSON", 404)
    assert {listed["side_reason"], unknown["side_reason"]} == {"additional"}
    status = await gateway.client.status(agent.id)
    assert (status.usage.calls, status.usage.side_calls, status.budget_exhausted) == (2, 2, "calls")


async def test_a_count_of_tokens_is_no_call(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url, limits={"calls": 1})
        for _ in range(3):
            assert (await agent.post("/v1/messages/count_tokens", b"{}")).status == 200
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.token_counts) == (0, 3)


@pytest.mark.parametrize("api", APIS)
async def test_a_wrong_token_is_refused_in_the_dialects_shape(gateway: GatewayFixture, api: Api) -> None:
    with ScriptedModel([HI]) as model:
        known = await gateway.agent(api, base_url(model, api))
        wrong = gateway.agent_of(known.registration.model_copy(update={"token": "bfg-" + "0" * 48}))
        got = await wrong.call()
    assert got.status == 401
    inner = got.json["error"]
    shapes = {"openai-chat": "type", "openai-responses": "type", "anthropic-messages": "type", "gemini": "status"}
    assert inner[shapes[api]] in ("authentication_error", "UNAUTHENTICATED")
    assert not model.calls
    assert not known.lines()


async def test_a_forgotten_rollouts_token_is_nobodys(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        assert (await agent.call()).status == 200
        await gateway.client.forget(agent.id)
        await gateway.client.forget(agent.id)
        assert (await agent.call()).status == 401
    assert not list(gateway.paths.gateway.rollouts.iterdir())


@pytest.mark.parametrize("size", [20, pytest.param(50, marks=pytest.mark.long)])
async def test_a_request_of_many_megabytes_goes_through(gateway: GatewayFixture, size: int) -> None:
    text = "0123456789abcdef" * (size * 2**16)
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        assert (await agent.call(text)).status == 200
    assert model.calls[0].body["messages"][0]["content"] == text
    [(request, _)] = await agent.answered()
    assert request["request"]["messages"][0]["content"] == text


async def test_a_request_that_is_too_large_is_refused_in_the_dialects_shape(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url)
        got = await agent.post("/v1/messages", b" " * (100 * 2**20 + 1))
    assert (got.status, got.json["error"]["type"]) == (413, "request_too_large")
    assert not model.calls


async def test_a_packed_request_goes_on_and_is_recorded_unpacked(gateway: GatewayFixture) -> None:
    path, body = ask("openai-responses", stream=False)
    packed = gzip.compress(json.dumps(body).encode())

    async def take(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with raw_upstream(take) as upstream:
        agent = await gateway.agent("openai-responses", upstream.base_url)
        await agent.post(path, packed, **{"content-encoding": "gzip"})
    assert json.loads(upstream.visits[0].body) == body
    assert b"content-encoding" not in upstream.visits[0].head.lower()
    request, _ = (await agent.answered())[0]
    assert (request["request"], request["model"]) == (body, "scripted")


async def test_a_packed_answer_goes_on_unpacked_and_is_metered(gateway: GatewayFixture) -> None:
    plain = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    packed = gzip.compress(plain)

    async def pack(visit: Visit) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
        await visit.send(head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)

    async with raw_upstream(pack) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await agent.call(stream=False)
    assert (got.body, "content-encoding" in got.headers) == (plain, False)
    [(_, response)] = await agent.answered()
    assert (response["usage"]["input_tokens"], response["response"]) == (7, plain.decode())


async def test_a_redirect_is_an_error_and_not_followed_with_the_key(gateway: GatewayFixture) -> None:
    async def send_elsewhere(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")

    async with raw_upstream(send_elsewhere) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        path, body = ask("openai-chat")
        shown = key_header("openai-chat", agent.registration.token)
        async with agent.session.post(agent.url(path), json=body, headers=shown, allow_redirects=False) as response:
            assert (response.status, "location" in response.headers) == (502, False)
            assert "which leads to http://127.0.0.1:9/: name that one" in await response.text()
    assert len(upstream.visits) == 1
