"""Knowing when no call is under way, and holding new ones back."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.gateway_fixture import GatewayFixture

from benchflow.errors import UnknownRolloutError
from benchflow.testing.scripted_model import Reply, ScriptedModel
from benchflow.testing.waiting import until

HI = Reply(text="Hi", times="always")


async def test_a_call_is_under_way_until_its_last_byte_was_given_and_recorded(gateway: GatewayFixture) -> None:
    with ScriptedModel([Reply(text="Hi", hold="slow")]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        assert (await gateway.client.status(agent.id)).quiet
        call = asyncio.create_task(agent.call())
        await model.arrived(1)
        assert (await gateway.client.status(agent.id)).in_flight == 1
        assert not await gateway.client.until_quiet(agent.id, timeout=0.05)
        waiting = asyncio.create_task(gateway.client.until_quiet(agent.id))
        model.release("slow")
        assert await waiting
        assert len(agent.lines()) == 2
        await call


async def test_quiet_for_a_while_counts_from_the_question_and_begins_again_with_a_call(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await agent.call()
        asked = time.monotonic()
        assert await gateway.client.until_quiet(agent.id, quiet_for=0.3)
        assert time.monotonic() - asked >= 0.3
        waiting = asyncio.create_task(gateway.client.until_quiet(agent.id, quiet_for=1.0))
        # A side call in between: the question was sent before, and has a while to go.
        await gateway.client.status(agent.id)
        called = time.monotonic()
        await agent.call()
        assert await waiting
        assert time.monotonic() - called >= 1.0


async def test_held_calls_wait_and_go_on_when_they_are_released(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        assert (await gateway.client.hold(agent.id)).held
        calls = [asyncio.create_task(agent.call()) for _ in range(3)]

        async def are_held_back() -> bool:
            return (await gateway.client.status(agent.id)).waiting == 3

        await until(are_held_back)
        assert await gateway.client.until_quiet(agent.id)
        assert not model.calls and not agent.lines()
        # What asks no model is not held.
        assert (await agent.post("/models/nothing", b"")).status == 404
        assert not (await gateway.client.release(agent.id)).held
        assert [(await call).status for call in calls] == [200] * 3
        assert (await gateway.client.status(agent.id)).waiting == 0


async def test_holding_lets_calls_under_way_end(gateway: GatewayFixture) -> None:
    with ScriptedModel([Reply(text="Hi", hold="slow")]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        call = asyncio.create_task(agent.call())
        await model.arrived(1)
        await gateway.client.hold(agent.id)
        model.release("slow")
        assert await gateway.client.until_quiet(agent.id)
        assert (await call).status == 200


async def test_one_rollouts_hold_is_not_anothers(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        one = await gateway.agent("openai-chat", model.openai_base_url, id="one")
        other = await gateway.agent("openai-chat", model.openai_base_url, id="other")
        await gateway.client.hold(one.id)
        assert (await other.call()).status == 200
        assert {status.id: status.held for status in await gateway.client.statuses()} == {"one": True, "other": False}


async def test_a_rollout_that_nobody_registered_is_an_error_by_its_name(gateway: GatewayFixture) -> None:
    for question in (
        gateway.client.status("nobody"),
        gateway.client.hold("nobody"),
        gateway.client.until_quiet("nobody"),
        gateway.client.attribute("nobody", node="n1"),
    ):
        with pytest.raises(UnknownRolloutError, match="nobody"):
            await question
