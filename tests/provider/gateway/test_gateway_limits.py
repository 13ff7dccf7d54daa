"""Budgets: what a rollout may use, what it has used, and how an agent hears that it is over."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.gateway_fixture import APIS, MODEL, Agent, GatewayFixture, Got, ask
from support.raw_upstream import DONE, SSE_HEAD, Visit, answer, chunk, event, raw_upstream

from benchflow.contracts.gateway import Api, ModelLimits
from benchflow.errors import ConfigError
from benchflow.gateway.rollouts import MAX_AT_ONCE
from benchflow.testing.scripted_model import Reply, ScriptedModel, TokenCounts
from benchflow.testing.waiting import until

HI = Reply(text="Hi", usage=TokenCounts(input=100, output=20, cached=60), times="always")


def base_url(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@pytest.mark.parametrize("api", APIS)
async def test_a_call_beyond_the_limit_gets_an_error_that_clients_do_not_repeat(
    gateway: GatewayFixture, api: Api
) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent(api, base_url(model, api), limits={"calls": 2})
        assert [(await agent.call()).status for _ in range(2)] == [200, 200]
        refused = [await agent.call(), await agent.call()][1]
    # Real clients of each kind were seen to make no further attempt.
    assert refused.status == (400 if api == "openai-responses" else 402)
    assert refused.headers["x-should-retry"] == "false"
    inner = refused.json["error"]
    told = {
        "openai-chat": ("type", "insufficient_quota"),
        "openai-responses": ("type", "invalid_request_error"),
        "anthropic-messages": ("type", "billing_error"),
        "gemini": ("status", "RESOURCE_EXHAUSTED"),
    }
    name, value = told[api]
    assert inner[name] == value
    assert "calls" in inner["message"]
    assert len(model.calls) == 2
    status = await gateway.client.status(agent.id)
    assert (status.budget_exhausted, status.usage.calls) == ("calls", 2)
    errors = [response["error"] for _, response in await agent.answered(4)]
    assert [error and error["kind"] for error in errors] == [None, None, "budget_exhausted", "budget_exhausted"]


@pytest.mark.parametrize(
    ("limits", "name", "calls"),
    [
        ({"input_tokens": 150}, "input_tokens", 2),
        ({"output_tokens": 20}, "output_tokens", 1),
        ({"total_tokens": 300}, "total_tokens", 3),
        ({"cost_usd": 0.0005}, "cost_usd", 2),
        ({"total_tokens": 300, "calls": 1}, "calls", 1),
    ],
)
async def test_tokens_and_money_count_when_a_call_has_ended(
    gateway: GatewayFixture, limits: dict[str, float], name: str, calls: int
) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits=limits, model="gpt-4.1")
        statuses = [(await agent.call(model="gpt-4.1")).status for _ in range(4)]
    assert statuses == [200] * calls + [402] * (4 - calls)
    status = await gateway.client.status(agent.id)
    assert status.budget_exhausted == name
    assert status.usage.total_tokens == 120 * calls
    # 40 fresh at 2 $, 60 cached at 0.5 $, 20 out at 8 $ a million.
    assert status.usage.cost_usd == pytest.approx(calls * (80 + 30 + 160) / 1e6)


async def test_a_limit_that_is_reached_is_no_trouble_until_another_call_comes(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits={"calls": 1})
        assert (await agent.call()).status == 200
        assert (await gateway.client.status(agent.id)).budget_exhausted is None
        await agent.call()
        assert (await gateway.client.status(agent.id)).budget_exhausted == "calls"


async def test_main_and_side_calls_both_count(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits={"calls": 2})
        assert [(await agent.call(tools=[])).status, (await agent.call()).status] == [200, 200]
        assert (await agent.call()).status == 402
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.side_calls) == (2, 1)


async def test_calls_at_the_same_time_do_not_pass_the_limit_of_calls(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits={"calls": 5})
        got = await asyncio.gather(*(agent.call() for _ in range(12)))
    assert sorted(one.status for one in got) == [200] * 5 + [402] * 7


async def test_no_more_tokens_are_used_by_calls_at_the_same_time_than_by_those_that_may_be_under_way(
    gateway: GatewayFixture,
) -> None:
    go = asyncio.Event()

    async def wait(visit: Visit) -> None:
        await asyncio.wait_for(go.wait(), 300)
        await visit.send(answer(DONE))

    async with raw_upstream(wait) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"total_tokens": 12})
        calls = [asyncio.create_task(agent.call(stream=False)) for _ in range(3 * MAX_AT_ONCE)]
        await until(lambda: len(upstream.visits) >= MAX_AT_ONCE)
        go.set()
        got = await asyncio.gather(*calls)
    assert sorted(one.status for one in got) == [200] * MAX_AT_ONCE + [402] * 2 * MAX_AT_ONCE
    assert len(upstream.visits) == MAX_AT_ONCE


async def test_a_stream_is_asked_for_its_usage_where_tokens_are_limited(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        free = await gateway.agent("openai-chat", model.openai_base_url, id="free", limits={"calls": 10})
        await free.call(stream_options=None)
        limited = await gateway.agent("openai-chat", model.openai_base_url, id="limited", limits={"total_tokens": 100})
        await limited.call(stream_options=None)
        assert (await limited.call()).status == 402
    assert model.calls[0].body["stream_options"] is None
    assert model.calls[1].body["stream_options"] == {"include_usage": True}
    assert (await limited.answered())[0][0]["sampling_applied"] == {"stream_options.include_usage": True}
    assert (await gateway.client.status("free")).usage.unmetered == 1


async def test_limits_may_be_raised_and_what_was_used_is_not_forgotten(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, limits={"calls": 1})
        assert [(await agent.call()).status for _ in range(2)] == [200, 402]
        raised = agent.registration.model_copy(update={"limits": ModelLimits(calls=2)})
        assert (await gateway.client.register(raised)).usage.calls == 1
        assert [(await agent.call()).status for _ in range(2)] == [200, 402]


async def test_an_unknown_price_is_no_price_and_a_limit_on_it_is_refused(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await agent.call()
        usage = (await gateway.client.status(agent.id)).usage
        assert (usage.cost_usd, usage.unpriced, usage.input_tokens) == (None, 1, 100)
        with pytest.raises(ConfigError, match=r"limits\.cost_usd.*scripted") as caught:
            await gateway.agent("openai-chat", model.openai_base_url, id="other", limits={"cost_usd": 1.0})
    assert caught.value.remedy is not None
    assert [status.id for status in await gateway.client.statuses()] == [agent.id]


async def test_what_failed_is_counted_as_a_call_and_not_as_unmetered(gateway: GatewayFixture) -> None:
    async def fail(visit: Visit) -> None:
        await visit.send(answer(b"{}", "400 Bad Request") if b"bad" in visit.body else answer(DONE))

    async with raw_upstream(fail) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        assert [(await agent.call("bad")).status, (await agent.call(stream=False)).status] == [400, 200]
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.unmetered, usage.input_tokens) == (2, 0, 10)


IMPOSSIBLE = {
    "negative": {"prompt_tokens": -100, "completion_tokens": -100},
    "negative in one place": {"prompt_tokens": 10, "completion_tokens": -100},
    "too many for anybody": {"prompt_tokens": 10**30, "completion_tokens": 10**30},
    "none at all": {"prompt_tokens": 0, "completion_tokens": 0},
    "no numbers": {"prompt_tokens": "many", "completion_tokens": [4]},
    "more from the cache than was read": {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 9_000_000},
    },
}


@pytest.mark.parametrize("usage", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
async def test_impossible_tokens_of_an_endpoint_are_estimated_and_switch_no_limit_off(
    gateway: GatewayFixture, usage: dict[str, object]
) -> None:
    said = json.loads(DONE) | {"usage": usage}

    async def tell(visit: Visit) -> None:
        await visit.send(answer(json.dumps(said).encode()))

    async with raw_upstream(tell) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"total_tokens": 1000})
        got = [(await agent.call("word " * 800, stream=False)).status for _ in range(2)]
    assert got == [200, 402]
    used = (await gateway.client.status(agent.id)).usage
    assert used.unmetered == 1
    assert 1000 <= used.total_tokens < 2000
    assert used.cached_tokens <= used.input_tokens


@pytest.mark.parametrize("has_read", ["all but the end", "nothing"])
async def test_an_agent_that_leaves_before_the_tokens_are_told_has_used_them(
    gateway: GatewayFixture, has_read: str
) -> None:
    async def say_much(visit: Visit) -> None:
        await visit.send(SSE_HEAD + (event("word " * 2000) if has_read != "nothing" else b""))
        await visit.gone.wait()

    async with raw_upstream(say_much) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"total_tokens": 3500}, stall_sec=1)
        prompt = "Say much." + " " * (8000 if has_read == "nothing" else 0)
        for _ in range(2):
            async with agent.open_call(prompt) as response:
                if has_read != "nothing":
                    assert b"word" in await response.content.readuntil(b"\n\n")
                response.close()
            await until_quiet(gateway, agent)
        async with agent.open_call(prompt) as response:
            assert response.status == 402
    usage = (await gateway.client.status(agent.id)).usage
    assert 3500 <= usage.total_tokens < 6000
    assert usage.unmetered == 2
    (_, response), *_ = await agent.answered(2)
    assert (response["error"]["kind"], response["usage"]["is_estimated"]) == ("client_closed", True)


TOLD = b'{"choices":[%s],"usage":{"prompt_tokens":7,"completion_tokens":5000}}'
ENDS = {
    "a stream": (
        SSE_HEAD + event("word"),
        chunk(b"data: " + TOLD % b'{"finish_reason":"stop"}' + b"\n\n") + chunk(b""),
    ),
    "a stream before its head": (
        b"",
        SSE_HEAD + chunk(b"data: " + TOLD % b'{"finish_reason":"stop"}' + b"\n\n0") + chunk(b""),
    ),
    "a whole answer": (b"", answer(TOLD % b'{"finish_reason":"stop","message":{"content":"Hi"}}')),
    "an error": (b"", answer(b"{}", "500 Later", "Connection: close\r\n")),
}


@pytest.mark.parametrize("what", ENDS)
async def test_what_an_endpoint_tells_when_the_agent_has_left_is_charged(gateway: GatewayFixture, what: str) -> None:
    head, end = ENDS[what]
    go = asyncio.Event()

    async def reason(visit: Visit) -> None:
        await visit.send(head)
        await asyncio.wait_for(go.wait(), 300)
        await visit.send(end)

    async def leave(agent: Agent, visits: int) -> None:
        if head:
            async with agent.open_call(model="gpt-4.1") as response:
                await response.content.readuntil(b"\n\n")
                response.close()
            return
        call = asyncio.create_task(agent.call(model="gpt-4.1"))
        await until(lambda: len(upstream.visits) > visits)
        call.cancel()

    async with raw_upstream(reason) as upstream:
        options = {"model": "gpt-4.1", "retries": {"max_retries": 1, "first_wait_sec": 0}}
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"total_tokens": 5000}, **options)
        for _ in range(MAX_AT_ONCE):
            await leave(agent, len(upstream.visits))
            # No turn waits for what nobody hears.
            await until_quiet(gateway, agent)
        usage = (await gateway.client.status(agent.id)).usage
        # As much as is known, as soon as the agent has left.
        assert 0 < usage.total_tokens < 100 * MAX_AT_ONCE and usage.cost_usd
        assert not [response for _, response in agent.calls() if response]
        # Nor can an agent have more calls made at once by leaving them.
        waiting = asyncio.create_task(agent.call(model="gpt-4.1"))
        await asyncio.sleep(0.2)
        assert len(upstream.visits) == MAX_AT_ONCE and not waiting.done()
        go.set()
        is_error = what == "an error"
        assert (await waiting).status == (500 if is_error else 402)
        answered = await agent.answered(MAX_AT_ONCE + 1)
        # What nobody waits for is not asked again.
        assert len(upstream.visits) == MAX_AT_ONCE + (2 if is_error else 0)
    usage = (await gateway.client.status(agent.id)).usage
    assert usage.total_tokens == (0 if is_error else 5007 * MAX_AT_ONCE)
    left = answered[0][1]
    assert (left["error"]["kind"], left["finish_reason"]) == ("client_closed", None)
    assert (left["usage"] or {"is_estimated": False})["is_estimated"] is False
    assert (left["status"], left["response"]) == ((200, event("word")[4:-2].decode()) if head else (None, ""))


async def test_at_the_end_of_its_rollout_a_call_that_nobody_waits_for_is_estimated(gateway: GatewayFixture) -> None:
    async def reason(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("word " * 400))
        await visit.gone.wait()

    async with raw_upstream(reason) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            await response.content.readuntil(b"\n\n")
        await until_quiet(gateway, agent)
        await gateway.client.forget(agent.id)
        await asyncio.wait_for(upstream.visits[0].gone.wait(), 300)
        [(_, response)] = await agent.answered()
    assert (response["error"]["kind"], response["usage"]["is_estimated"]) == ("client_closed", True)
    assert response["usage"]["output_tokens"] == 500


async def until_quiet(gateway: GatewayFixture, agent: Agent) -> None:
    assert await gateway.client.until_quiet(agent.id, timeout=300)


async def test_an_agent_that_leaves_after_the_end_has_used_what_was_told(gateway: GatewayFixture) -> None:
    async def stay(visit: Visit) -> None:
        told = b'data: {"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
        await visit.send(SSE_HEAD + event("word " * 2000) + chunk(told))
        await visit.gone.wait()

    async with raw_upstream(stay) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            while b"stop" not in await response.content.readline():
                pass
            response.close()
        await until_quiet(gateway, agent)
    [(_, response)] = await agent.answered()
    assert (response["error"], response["usage"]["is_estimated"]) == (None, False)
    assert (await gateway.client.status(agent.id)).usage.total_tokens == 10


UNPRICED: dict[Api, tuple[str | None, ...]] = {
    "openai-chat": ("gpt-unpriced-9", "GPT-4.1", " gpt-4.1", "ft:gpt-4.1:x", "gpt-4.1-dear", None),
    "gemini": ("gemini-2.5-pro-dear", "GEMINI-2.5-pro"),
}


@pytest.mark.parametrize("api", UNPRICED)
async def test_a_model_without_a_known_price_is_not_asked_where_money_is_limited(
    gateway: GatewayFixture, api: Api
) -> None:
    priced = "gpt-4.1-2025-04-14" if api == "openai-chat" else "gemini-2.5-pro"
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent(api, base_url(model, api), limits={"cost_usd": 1.0}, model=priced)

        async def call(name: str | None) -> Got:
            path, body = ask(api, stream=False)
            body |= {"model": name} if api == "openai-chat" else {}
            return await agent.post(path.replace(MODEL, name or ""), json.dumps(body).encode())

        got = [await call(name) for name in (*UNPRICED[api], UNPRICED[api][0])]
        assert [(one.status, one.headers["x-should-retry"]) for one in got] == [(400, "false")] * len(got)
        assert "price" in got[0].json["error"]["message"]
        assert not model.calls
        # It may ask another model.
        assert (await call(priced)).status == 200
    status = await gateway.client.status(agent.id)
    assert (status.budget_exhausted, status.usage.calls, status.usage.unpriced) == (None, 1, 0)
    assert status.refused[0].count == 2
    assert [one.unpriced for one in status.refused] == [(name or "").replace(" ", "?") for name in UNPRICED[api]]
    (request, response), *_ = await agent.answered(len(got) + 1)
    assert (response["error"]["kind"], request["request"]) == ("unpriced", None)


async def test_what_costs_more_than_its_tokens_is_not_asked_for_where_money_is_limited(gateway: GatewayFixture) -> None:
    tool = {"type": "file_search"}
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent(
            "openai-responses", model.openai_base_url, limits={"cost_usd": 1.0}, model="gpt-5.5"
        )
        got = [await agent.call(model="gpt-5.5", **more) for more in ({"service_tier": "priority"}, {"tools": [tool]})]
        assert [one.status for one in got] == [400, 400] and not model.calls
        assert (await agent.call(model="gpt-5.5", service_tier="auto")).status == 200
        free = await gateway.agent("openai-responses", model.openai_base_url, id="free", model="gpt-5.5")
        assert (await free.call(model="gpt-5.5", tools=[tool])).status == 200
    refused = (await gateway.client.status(agent.id)).refused
    assert [one.unpriced for one in refused] == ["service_tier:priority", "tools:file_search"]


async def test_what_a_registrations_own_requests_cost_is_not_known_either(gateway: GatewayFixture) -> None:
    async with raw_upstream(lambda visit: visit.send(answer(DONE))) as upstream:
        options = {"requests": ("POST /v1/embeddings",), "model": "gpt-4.1"}
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"cost_usd": 1.0}, **options)
        assert (await agent.post("/embeddings", b'{"model": "gpt-4.1", "input": "x"}')).status == 400
        assert not upstream.visits


async def test_a_dearer_model_that_answers_is_paid_and_a_cheaper_one_is_not_believed(gateway: GatewayFixture) -> None:
    said = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}

    async def answer_as(visit: Visit) -> None:
        name = json.loads(visit.body)["messages"][0]["content"]
        await visit.send(answer(json.dumps(said | {"model": name, "usage": usage}).encode()))

    async with raw_upstream(answer_as) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, limits={"cost_usd": 100.0}, model="gpt-4.1")
        for name in ("gpt-4o-2024-08-06", "gpt-4o-mini", "unheard-of"):
            assert (await agent.call(name, stream=False, model="gpt-4.1")).status == 200
        costs = [response["usage"]["cost_usd"] for _, response in await agent.answered(3)]
    assert costs == [2.5, 2.0, 2.0]
