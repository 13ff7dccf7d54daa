"""Sampling parameters are put into every call, or refused where a dialect has no place for them."""

from __future__ import annotations

from typing import Any

import pytest
from support.gateway_fixture import GatewayFixture, ask
from support.raw_upstream import DONE, Visit, answer, raw_upstream

from benchflow.contracts.gateway import Api
from benchflow.errors import ConfigError
from benchflow.testing.scripted_model import Reply, ScriptedModel

HI = Reply(text="Hi", times="always")
ALL = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 64}


@pytest.mark.parametrize(
    ("api", "sampling", "asked", "sent"),
    [
        ("openai-chat", ALL | {"seed": 7}, {}, ALL | {"seed": 7}),
        ("openai-chat", ALL, {"max_completion_tokens": 1000}, {"max_completion_tokens": 64, "max_tokens": None}),
        ("openai-chat", ALL, {"max_tokens": 10, "temperature": 1}, {"max_tokens": 10, "temperature": 0.5}),
        ("openai-responses", ALL, {}, {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 64}),
        ("anthropic-messages", ALL, {}, ALL),
    ],
)
async def test_parameters_are_put_into_the_body_and_max_tokens_is_a_cap(
    gateway: GatewayFixture, api: Api, sampling: dict[str, Any], asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    with ScriptedModel([HI]) as model:
        base_url = model.openai_base_url if api.startswith("openai") else model.base_url
        agent = await gateway.agent(api, base_url, sampling=sampling)
        assert (await agent.call("Grüße", **asked)).status == 200
    body = model.calls[0].body
    assert {name: body.get(name) for name in sent} == sent
    request = (await agent.answered())[0][0]
    # The record has what the agent sent, and what was changed.
    given = ask(api, "Grüße", **asked)[1]
    assert request["request"] == given
    assert request["sampling_applied"] == {name: body[name] for name in body if body[name] != given.get(name)} != {}


async def test_gemini_has_them_in_its_generation_config(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("gemini", model.base_url, sampling=ALL | {"seed": 7})
        await agent.call(generationConfig={"maxOutputTokens": 32, "stopSequences": ["x"]})
    config = model.calls[0].body["generationConfig"]
    assert config == {"maxOutputTokens": 32, "stopSequences": ["x"], "temperature": 0.5, "topP": 0.9, "seed": 7}
    assert (await agent.answered())[0][0]["sampling_applied"] == {
        "generationConfig.temperature": 0.5,
        "generationConfig.topP": 0.9,
        "generationConfig.seed": 7,
    }


async def test_a_call_that_has_all_parameters_already_goes_on_byte_for_byte(gateway: GatewayFixture) -> None:
    async def say(visit: Visit) -> None:
        await visit.send(answer(DONE))

    body = b'{ "model": "scripted",  "temperature": 0.5, "messages": [] }'
    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, sampling={"temperature": 0.5})
        await agent.post("/chat/completions", body)
    assert upstream.visits[0].body == body
    assert (await agent.answered())[0][0]["sampling_applied"] is None


@pytest.mark.parametrize("api", ["anthropic-messages", "openai-responses"])
async def test_a_parameter_that_the_dialect_lacks_is_refused_by_name(gateway: GatewayFixture, api: Api) -> None:
    with pytest.raises(ConfigError, match=rf"sampling\.seed.*{api}"):
        await gateway.agent(api, "http://127.0.0.1:9", sampling={"seed": 7})
    assert await gateway.client.statuses() == []


async def test_a_body_that_nothing_can_be_put_into_is_refused(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url, sampling={"temperature": 0.5})
        got = await agent.post("/chat/completions", b"not JSON")
        assert got.status == 400
        assert not model.calls
    assert (await agent.answered())[0][1]["error"]["kind"] == "unreadable"
    assert (await gateway.client.status(agent.id)).usage.calls == 0
