"""Many at once: none is mixed up with another, none is lost, and memory does not grow with what went through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.gateway_fixture import GatewayFixture
from support.raw_upstream import SSE_HEAD, Visit, chunk, event, raw_upstream

STREAMS = 200
ROLLOUTS = 10


async def test_200_streams_at_once_are_each_their_own(gateway: GatewayFixture) -> None:
    here, go_on = asyncio.Event(), asyncio.Event()

    async def echo(visit: Visit) -> None:
        text = json.loads(visit.body)["messages"][0]["content"]
        if len(upstream.visits) == STREAMS:
            here.set()
        # Nobody gets anything before all have come and were counted: they are all under way at once.
        await go_on.wait()
        await visit.send(SSE_HEAD)
        for number in range(20):
            await visit.send(event(f"{text}/{number}"))
            await asyncio.sleep(0)
        await visit.send(chunk(b""))

    async with raw_upstream(echo) as upstream:
        agents = [await gateway.agent("openai-chat", upstream.base_url, id=f"r{number}") for number in range(ROLLOUTS)]
        names = [f"{number % ROLLOUTS}-{number}" for number in range(STREAMS)]
        calls = [asyncio.create_task(agents[number % ROLLOUTS].call(name)) for number, name in enumerate(names)]
        await asyncio.wait_for(here.wait(), 300)
        counted = [status.in_flight for status in await gateway.client.statuses()]
        go_on.set()
        got = await asyncio.gather(*calls)
    assert counted == [STREAMS // ROLLOUTS] * ROLLOUTS
    for name, one in zip(names, got, strict=True):
        said = [json.loads(line[5:])["choices"][0]["delta"]["content"] for line in one.body.splitlines() if line]
        assert said == [f"{name}/{number}" for number in range(20)]
    for number, agent in enumerate(agents):
        calls_of_it = await agent.answered(STREAMS // ROLLOUTS)
        assert {request["request"]["messages"][0]["content"].split("-")[0] for request, _ in calls_of_it} == {
            str(number)
        }
        assert all(
            request["request"]["messages"][0]["content"] + "/19" in response["response"]
            for request, response in calls_of_it
        )
        # A call is over a moment after its record has its end.
        assert await gateway.client.until_quiet(agent.id)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(20_000, 400, id="large"),
        pytest.param(1, 1600, id="small", marks=pytest.mark.long),
        pytest.param(20_000, 8000, id="large-and-many", marks=pytest.mark.long),
    ],
)
async def test_memory_does_not_grow_with_what_went_through(own_gateway: GatewayFixture, size: int, count: int) -> None:
    async def say(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event("x" * size) + chunk(b""))

    async with raw_upstream(say) as upstream:
        agent = await own_gateway.agent("openai-chat", upstream.base_url)

        async def some(calls: int) -> float:
            for _ in range(calls // 20):
                await asyncio.gather(*(agent.call("y" * size) for _ in range(20)))
            return _resident_mb(own_gateway.pid)

        warm = await some(count // 4)
        assert await some(count - count // 4) - warm < 8
    assert (await own_gateway.client.status(agent.id)).usage.calls == count


def _resident_mb(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024
