"""An upstream that is overloaded or away: asked again while the agent waits, and then given as it is."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from support.gateway_fixture import GatewayFixture
from support.raw_upstream import DONE, SSE_HEAD, Visit, answer, event, raw_upstream

from benchflow.contracts.gateway import EndpointPolicy, RetryPolicy
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until

QUICK = {"first_wait_sec": 0.02, "max_retries": 3}


def failing(status: int, times: int | str, **more: Any) -> dict[str, Any]:
    return {"error": {"status": status, **more}, "times": times}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
async def test_a_call_waits_while_the_upstream_is_overloaded(gateway: GatewayFixture, status: int) -> None:
    with ScriptedModel([failing(status, 2), "Hi"]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url, retries=QUICK)
        got = await agent.call()
    assert got.status == 200
    assert len(model.calls) == 3
    [(_, response)] = await agent.answered()
    assert [retry["status"] for retry in response["retries"]] == [status, status]
    assert [retry["waited_sec"] for retry in response["retries"]] == [0.02, 0.04]
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.output_tokens) == (1, 20)


async def test_the_upstream_says_how_long_to_wait(gateway: GatewayFixture) -> None:
    with ScriptedModel([failing(429, 1, retry_after=0.3), "Hi"]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, retries=QUICK)
        began = time.monotonic()
        assert (await agent.call()).status == 200
        assert time.monotonic() - began >= 0.3
    [(_, response)] = await agent.answered()
    [retry] = response["retries"]
    assert (retry["status"], retry["waited_sec"]) == (429, 0.3)
    # The one counts from the call, the other from the last attempt.
    assert response["timing"]["first_byte_ms"] - response["timing"]["upstream_first_byte_ms"] >= 299


async def test_in_the_end_the_agent_gets_the_upstreams_own_answer(gateway: GatewayFixture) -> None:
    with ScriptedModel([failing(529, "always", message="full today")]) as model:
        agent = await gateway.agent("anthropic-messages", model.base_url, retries=QUICK)
        got = await agent.call()
    assert (got.status, got.json["error"]) == (529, {"type": "overloaded_error", "message": "full today"})
    assert len(model.calls) == 4
    [(_, response)] = await agent.answered()
    assert (response["error"]["kind"], len(response["retries"])) == ("upstream_status", 3)
    assert response["response"].encode() == got.body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_would_be_refused_again_is_not_asked_again(gateway: GatewayFixture, status: int) -> None:
    with ScriptedModel([failing(status, "always")]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, retries=QUICK)
        assert (await agent.call()).status == status
    assert len(model.calls) == 1


async def test_an_upstream_that_says_not_to_ask_again_is_not(gateway: GatewayFixture) -> None:
    async def refuse(visit: Visit) -> None:
        await visit.send(answer(b"{}", "500 No", "x-should-retry: false\r\n"))

    async with raw_upstream(refuse) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries=QUICK)
        assert (await agent.call()).status == 500
    assert len(upstream.visits) == 1


async def test_no_connection_is_asked_for_again_and_then_said_in_the_dialects_shape(gateway: GatewayFixture) -> None:
    with socket.socket() as taken:
        # Where nobody listens, nor can meanwhile.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        agent = await gateway.agent("anthropic-messages", f"http://127.0.0.1:{port}", retries=QUICK)
        got = await agent.call()
    assert (got.status, got.json["error"]["type"]) == (502, "api_error")
    assert f"127.0.0.1:{port}" in got.json["error"]["message"]
    [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "unreachable"
    assert [retry["status"] for retry in response["retries"]] == [None, None, None]


async def test_a_connection_that_is_lost_before_the_answer_is_made_again_at_once(gateway: GatewayFixture) -> None:
    async def lose_the_first(visit: Visit) -> None:
        if len(upstream.visits) > 1:
            await visit.send(answer(DONE))

    async with raw_upstream(lose_the_first) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries={"first_wait_sec": 30})
        began = time.monotonic()
        assert (await agent.call(stream=False)).body == DONE
        assert time.monotonic() - began < 25
    assert (await agent.answered())[0][1]["retries"] == [
        {"status": None, "waited_sec": 0.0, "words": "Server disconnected"}
    ]


async def test_nothing_is_asked_again_after_the_first_byte(gateway: GatewayFixture) -> None:
    async def break_off(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("one"))

    async with raw_upstream(break_off) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries=QUICK)
        async with agent.open_call() as response:
            with pytest.raises(Exception, match="payload"):
                await response.read()
    assert len(upstream.visits) == 1
    assert (await agent.answered())[0][1]["retries"] == []


async def test_an_agent_that_leaves_while_it_waits_ends_the_asking(gateway: GatewayFixture) -> None:
    async def refuse(visit: Visit) -> None:
        await visit.send(answer(b"{}", "429 Later", "Retry-After: 300\r\nConnection: close\r\n"))
        await visit.gone.wait()

    async with raw_upstream(refuse) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries={"max_wait_sec": 300, "total_sec": 600})
        call = asyncio.create_task(agent.call())
        # It has the answer, and waits.
        await until(lambda: upstream.visits and upstream.visits[0].gone.is_set())
        call.cancel()
        [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "client_closed"
    assert (response["status"], response["retries"]) == (None, [{"status": 429, "waited_sec": 300.0, "words": "{}"}])
    assert len(upstream.visits) == 1


WAIT = RetryPolicy.of("wait(20s)").model_dump() | {"first_wait_sec": 0.3}


@pytest.mark.parametrize("status", [401, 404, 429, 503])
async def test_an_endpoint_that_somebody_mends_is_waited_for(gateway: GatewayFixture, status: int) -> None:
    with ScriptedModel([failing(status, 3, message="not now"), "Hi"]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, retries=WAIT)
        began = time.monotonic()
        got = await agent.call()
        waited = time.monotonic() - began
    assert got.status == 200
    [(_, response)] = await agent.answered()
    assert [(retry["status"], retry["words"].partition(" (")[0]) for retry in response["retries"]] == [
        (status, "not now")
    ] * 3
    # The agent's turn is not charged for it.
    [(blocked, until_)] = (await gateway.client.status(agent.id)).blocked
    assert waited * 0.8 <= until_ - blocked <= waited


async def test_all_calls_of_a_rollout_wait_for_its_endpoint_together(gateway: GatewayFixture) -> None:
    policy = WAIT | {"total_sec": 1.0}
    with ScriptedModel([failing(401, "always")]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, retries=policy)
        began = time.monotonic()
        assert (await agent.call()).status == 401
        assert time.monotonic() - began < 3
        # What an agent repeats has no limit of its own.
        began = time.monotonic()
        assert (await agent.call()).status == 401
        assert time.monotonic() - began < 0.5


async def test_a_question_that_is_wrong_is_not_waited_for(gateway: GatewayFixture) -> None:
    with ScriptedModel([failing(400, "always")]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, retries=WAIT)
        assert (await agent.call()).status == 400
    assert len(model.calls) == 1


@pytest.mark.parametrize("policy", ["wait", "wait()", "wait(5d)", "wait(-1s)", "wait(1h) ", "never"])
def test_a_policy_that_is_none_is_refused(policy: str) -> None:
    with pytest.raises(ValidationError, match="must be `fail`, or `wait"):
        TypeAdapter(EndpointPolicy).validate_python(policy)


@pytest.mark.parametrize(("policy", "seconds"), [("wait(90)", 90), ("wait(1.5m)", 90), ("wait(2h)", 7200)])
def test_the_limit_of_a_policy_has_a_unit(policy: str, seconds: float) -> None:
    assert RetryPolicy.of(policy).total_sec == seconds
