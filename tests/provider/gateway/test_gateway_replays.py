"""A rollout that is answered from a record, through the gateway's own door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.gateway_fixture import APIS, Agent, GatewayFixture, Got

from benchflow.contracts.gateway import Api
from benchflow.errors import ConfigError
from benchflow.testing.scripted_model import Reply, ScriptedModel

REPLIES = ["First", Reply(text="Second", thinking="hm"), Reply(text="live", times="always")]
TEXTS = ("one", "two")


def base_url(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@asynccontextmanager
async def recorded(
    gateway: GatewayFixture, api: Api = "openai-chat"
) -> AsyncIterator[tuple[Agent, list[Got], ScriptedModel]]:
    """A rollout of two calls, what it got, and its model, which goes on."""
    with ScriptedModel(REPLIES) as model:
        agent = await gateway.agent(api, base_url(model, api), id="first")
        await gateway.client.attribute(agent.id, node="n1")
        got = [await agent.call(text) for text in TEXTS]
        await agent.answered(2)
        yield agent, got, model


async def again(gateway: GatewayFixture, first: Agent, **options: object) -> Agent:
    """The same rollout, answered from its record."""
    replay = {"record": str(first.record)} | options
    asked = first.registration
    return await gateway.agent(asked.api, asked.base_url, id="second", replay=replay, limits={"calls": 1})


@pytest.mark.parametrize("api", APIS)
async def test_answers_are_the_recorded_ones_byte_for_byte_without_a_model(gateway: GatewayFixture, api: Api) -> None:
    async with recorded(gateway, api) as (first, got, model):
        calls = len(model.calls)
    second = await again(gateway, first)
    replayed = [await second.call(text) for text in TEXTS]
    assert [one.body for one in replayed] == [one.body for one in got]
    assert [one.headers["content-type"] for one in replayed] == [one.headers["content-type"] for one in got]
    assert len(model.calls) == calls
    status = await gateway.client.status(second.id)
    # What was answered from a record uses nothing up.
    assert (status.usage.replayed, status.usage.calls, status.budget_exhausted) == (2, 0, None)
    assert status.replay is not None and (status.replay.answered, status.replay.left) == (2, 0)
    assert [request["source"] for request, _ in await second.answered(2)] == ["replay", "replay"]
    assert [response["response"] for _, response in second.calls() if response] == [one.body.decode() for one in got]


async def test_a_call_that_is_another_one_goes_live_and_the_difference_is_told(gateway: GatewayFixture) -> None:
    async with recorded(gateway) as (first, _, model):
        second = await again(gateway, first)
        before = len(model.calls)
        assert (await second.call("one")).status == 200
        assert b"live" in (await second.call("something else")).body
        assert len(model.calls) == before + 1
    replay = (await gateway.client.status(second.id)).replay
    assert replay is not None and replay.divergence is not None
    assert (replay.state, replay.divergence.seq) == ("diverged", 1)
    assert "something else" in replay.divergence.diff
    assert [request["source"] for request, _ in await second.answered(2)] == ["replay", "live"]


async def test_a_strict_replay_refuses_what_is_not_recorded(gateway: GatewayFixture) -> None:
    async with recorded(gateway) as (first, _, model):
        second = await again(gateway, first, strict=True)
        before = len(model.calls)
        assert (await second.call("one")).status == 200
        refused = await second.call("something else")
        assert (await second.call("two")).status == 402
        assert len(model.calls) == before
    assert (refused.status, refused.headers["x-should-retry"]) == (402, "false")
    replay = (await gateway.client.status(second.id)).replay
    assert replay is not None and replay.state == "diverged"
    kinds = [response["error"] and response["error"]["kind"] for _, response in await second.answered(3)]
    assert kinds == [None, "replay_diverged", "replay_diverged"]


async def test_after_the_record_calls_go_live_and_count(gateway: GatewayFixture) -> None:
    async with recorded(gateway) as (first, _, _model):
        second = await again(gateway, first, until="n1")
        assert [(await second.call(text)).status for text in (*TEXTS, "three", "four")] == [200, 200, 200, 402]
    usage = (await gateway.client.status(second.id)).usage
    assert (usage.replayed, usage.calls) == (2, 1)


async def test_a_replay_goes_on_where_it_was_when_the_gateway_was_restarted(gateway: GatewayFixture) -> None:
    async with recorded(gateway) as (first, got, model):
        second = await again(gateway, first, strict=True)
        await second.call("one")
        before = len(model.calls)
        await gateway.kill()
        await gateway.start()
        assert (await second.call("two")).body == got[1].body
        assert len(model.calls) == before
    status = await gateway.client.status(second.id)
    assert status.usage.replayed == 2


async def test_a_record_that_is_not_there_is_refused(gateway: GatewayFixture) -> None:
    async with recorded(gateway) as (first, _, _model):
        with pytest.raises(ConfigError, match="nowhere"):
            await again(gateway, first, record="/nowhere/llm_trajectory.jsonl")
    assert [status.id for status in await gateway.client.statuses()] == ["first"]
