"""A checkpoint while a call of the agent's model is under way: it is taken when the call has ended, however late."""

from __future__ import annotations

import asyncio

import pytest
from support.gateway_fixture import GatewayFixture
from support.gateway_model import model_of
from support.raw_upstream import DONE, Visit, answer, raw_upstream

from benchflow.contracts.gateway import RetryPolicy
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.errors import BenchFlowError
from benchflow.hosting import model as models
from benchflow.testing.waiting import until


async def test_a_call_that_is_under_way_for_long_delays_a_checkpoint_and_does_not_fail_it(
    gateway: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = asyncio.Event()

    async def recover(visit: Visit) -> None:
        # The gateway asks again until the endpoint has recovered.
        await visit.send(answer(DONE) if ready.is_set() else answer(b"{}", "503 Service Unavailable"))

    monkeypatch.setattr(models, "QUIET_SEC", 0.1)
    async with raw_upstream(recover) as upstream:
        retries = RetryPolicy(max_retries=10_000, first_wait_sec=0.05, max_wait_sec=0.05)
        agent = await gateway.agent("openai-chat", upstream.base_url, retries=retries)
        model = model_of(gateway.paths, gateway.directory / "notes", agent.id)
        call = asyncio.create_task(agent.call(stream=False))
        await until(lambda: upstream.visits)
        with pytest.raises(BenchFlowError, match="still under way") as caught:
            await model.count_requests()
        assert caught.value.retryable
        ready.set()
        assert (await call).status == 200
        assert await model.count_requests() == 1


def test_a_checkpoint_is_tried_for_longer_than_the_gateway_asks_an_endpoint_again() -> None:
    assert models.QUIET_SEC * WorkerOptions().max_failures > RetryPolicy().total_sec + models.QUIET_SEC
