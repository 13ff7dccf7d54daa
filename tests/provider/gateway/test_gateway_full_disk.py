"""A gateway that cannot write to a rollout's record: calls wait for their disk, and none is lost or unrecorded."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.gateway_fixture import Agent, GatewayFixture
from support.gateway_model import model_of
from support.outages import filled, tmpfs
from support.raw_upstream import DONE, SSE_HEAD, Visit, answer, chunk, event, raw_upstream
from support.signals import stopped

from benchflow.gateway.blockage import Blockage
from benchflow.hosting import model as models
from benchflow.testing.waiting import until

LONG = "one " * 4096
"""More than the record's last block has space for."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk, where a rollout's record can be."""
    directory = tmp_path / "disk"
    with tmpfs(directory, 1 << 20):
        yield directory


async def agent_on(gateway: GatewayFixture, disk: Path, base_url: str, **options: object) -> Agent:
    return await gateway.agent("openai-chat", base_url, record=str(disk / "llm_trajectory.jsonl"), **options)


async def in_flight(gateway: GatewayFixture, agent: Agent) -> int:
    return (await gateway.client.status(agent.id)).in_flight


async def is_held(gateway: GatewayFixture, agent: Agent, call: asyncio.Task[object], calls: int = 1) -> bool:
    """Tell whether so many calls wait, or one does no longer."""
    return await in_flight(gateway, agent) == calls or call.done()


async def blocked_for(gateway: GatewayFixture, agent: Agent, seconds: float) -> bool:
    blocked = (await gateway.client.status(agent.id)).blocked
    return sum(ended - began for began, ended in blocked) >= seconds


async def answer_done(visit: Visit) -> None:
    await visit.send(answer(DONE))


async def test_a_call_waits_for_space_for_its_request(gateway: GatewayFixture, disk: Path) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await agent_on(gateway, disk, upstream.base_url)
        with filled(disk):
            call = asyncio.create_task(agent.call(stream=False))
            await until(lambda: is_held(gateway, agent, call))
            assert not call.done() and not upstream.visits
        assert (await call).status == 200
        await agent.answered()
    assert [line["type"] for line in agent.lines()] == ["request", "response"]
    assert (await gateway.client.status(agent.id)).failure is None


async def test_an_answer_waits_for_space_for_its_line(gateway: GatewayFixture, disk: Path) -> None:
    ready = asyncio.Event()

    async def answer_when_ready(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event(LONG))
        await ready.wait()
        await visit.send(event("two") + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with raw_upstream(answer_when_ready) as upstream:
        agent = await agent_on(gateway, disk, upstream.base_url)
        call = asyncio.create_task(agent.call())
        await until(lambda: agent.lines() and upstream.visits)
        with filled(disk):
            ready.set()

            async def is_counted() -> bool:
                return (await gateway.client.status(agent.id)).usage.output_tokens > 0

            # In the moment in which its line is written.
            await until(is_counted)
            assert (await in_flight(gateway, agent), call.done()) == (1, False)
        assert b"two" in (await call).body
        [(_, response)] = await agent.answered()
    assert "two" in response["response"]
    assert (await gateway.client.status(agent.id)).failure is None


async def test_no_more_calls_are_made_than_allowed_when_several_have_waited_for_space(
    gateway: GatewayFixture, disk: Path
) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await agent_on(gateway, disk, upstream.base_url, limits={"calls": 2})
        with filled(disk):
            calls = [asyncio.create_task(agent.call(stream=False)) for _ in range(4)]
            await until(lambda: is_held(gateway, agent, calls[0], 4))
        got = [(await call).status for call in calls]
    assert sorted(got) == [200, 200, 402, 402]
    assert len(upstream.visits) == 2


@pytest.mark.parametrize(
    "end",
    ["agent", "rollout", pytest.param("gateway", marks=pytest.mark.long)],
)
async def test_a_call_that_waits_for_space_ends_with_its_agent_its_rollout_and_the_gateway(
    own_gateway: GatewayFixture, disk: Path, end: str
) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await agent_on(own_gateway, disk, upstream.base_url)
        with filled(disk):
            call = asyncio.create_task(agent.call(stream=False))
            await until(lambda: is_held(own_gateway, agent, call))
            assert not call.done()
            if end == "agent":
                call.cancel()

                async def has_ended() -> bool:
                    return await in_flight(own_gateway, agent) == 0

                await until(has_ended)
            elif end == "rollout":
                await own_gateway.client.forget(agent.id)
                assert (await call).status == 503
            else:
                await own_gateway.kill(signal.SIGTERM)
                # Its connection ends without an answer: agents call again.
                with pytest.raises(aiohttp.ServerDisconnectedError):
                    await call
        assert not upstream.visits and not agent.lines()


@pytest.mark.long
async def test_a_gateway_ends_though_an_answer_waits_for_space(own_gateway: GatewayFixture, disk: Path) -> None:
    ready = asyncio.Event()

    async def answer_when_ready(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event(LONG))
        await ready.wait()
        await visit.send(chunk(b""))

    async with raw_upstream(answer_when_ready) as upstream:
        agent = await agent_on(own_gateway, disk, upstream.base_url)
        call = asyncio.create_task(agent.call())
        await until(lambda: agent.lines() and upstream.visits)
        with filled(disk):
            ready.set()

            async def is_counted() -> bool:
                return (await own_gateway.client.status(agent.id)).usage.output_tokens > 0

            await until(is_counted)
            await own_gateway.kill(signal.SIGTERM)
            await asyncio.gather(call, return_exceptions=True)
        await own_gateway.start()
        [(_, response)] = await agent.answered()
    assert response["error"]["kind"] == "gateway_restarted"


async def test_the_time_in_which_calls_wait_for_space_is_told(gateway: GatewayFixture, disk: Path) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await agent_on(gateway, disk, upstream.base_url)
        assert (await agent.call(stream=False)).status == 200
        status = await gateway.client.status(agent.id)
        assert status.blocked == ()
        began = time.monotonic()
        with filled(disk):
            calls = [asyncio.create_task(agent.call(LONG, stream=False)) for _ in range(3)]
            await until(lambda: blocked_for(gateway, agent, 1.0))
            assert not any(call.done() for call in calls)
        assert [(await call).status for call in calls] == [200] * 3
        ended = time.monotonic()
        assert (await agent.call(stream=False)).status == 200
        # Several wait at once.
        [(first, last)] = (await gateway.client.status(agent.id)).blocked
        assert began <= first <= last - 1.0 <= ended - 1.0


async def test_an_answer_that_waits_for_space_keeps_its_agent_waiting_unless_that_has_left(
    gateway: GatewayFixture, disk: Path
) -> None:
    ready = asyncio.Event()

    async def answer_when_ready(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event(LONG))
        await ready.wait()
        await visit.send(event("two") + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with raw_upstream(answer_when_ready) as upstream:
        waiting, leaving = [
            await gateway.agent("openai-chat", upstream.base_url, id, record=str(disk / f"{id}.jsonl"))
            for id in ("waiting", "leaving")
        ]
        calls = [asyncio.create_task(agent.call()) for agent in (waiting, leaving)]
        await until(lambda: waiting.lines() and leaving.lines() and len(upstream.visits) == 2)
        calls[1].cancel()

        async def has_left() -> bool:
            return await in_flight(gateway, leaving) == 0

        await until(has_left)
        with filled(disk):
            ready.set()
            await until(lambda: blocked_for(gateway, waiting, 1.0))
            assert not calls[0].done()
            assert not await blocked_for(gateway, leaving, 0.1)
        assert (await calls[0]).status == 200
        await waiting.answered()
        await leaving.answered()


async def test_a_turn_is_told_what_it_waits_for(
    own_gateway: GatewayFixture, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await agent_on(own_gateway, disk, upstream.base_url)
        model = model_of(own_gateway.paths, own_gateway.directory / "notes", agent.id)
        assert await model.find_blocked() == ()
        assert await model_of(own_gateway.paths, own_gateway.directory / "notes", "nobody").find_blocked() == ()
        with filled(disk):
            call = asyncio.create_task(agent.call(LONG, stream=False))
            await until(lambda: blocked_for(own_gateway, agent, 0.1))
            assert await model.find_blocked()
        assert (await call).status == 200
    with monkeypatch.context() as patch, stopped([own_gateway.pid]):
        patch.setattr(models, "ANSWER_SEC", 0.2)
        assert await model.find_blocked() is None
    await own_gateway.kill()
    assert await model.find_blocked() is None
    # The next one knows of what its agent has waited for.
    await own_gateway.start()
    blocked = await model.find_blocked()
    assert blocked and sum(ended - began for began, ended in blocked) >= 0.1


def test_the_waits_of_a_rollout_are_recorded_on_a_full_disk(disk: Path) -> None:
    blockage = Blockage(disk / "blocked")
    began = time.monotonic() - 1
    with filled(disk):
        blockage.add(began)
    assert [first for first, _ in Blockage(disk / "blocked").intervals] == [round(began, 3)]
