"""A checkpoint while a call of the agent's model is under way: it is taken when the call has ended, however late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.gateway_house import House
from support.raw_upstream import DONE, Visit, answer, raw_upstream

from benchflow.activities import models
from benchflow.activities.context import WorkerContext
from benchflow.activities.models import Model
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.gateway import RetryPolicy
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.contracts.options import WorkerOptions
from benchflow.errors import BenchFlowError
from benchflow.testing.waiting import until


def model_of(house: House, id: str) -> Model:
    nothing: Any = None
    context = WorkerContext(
        client=nothing,
        paths=house.paths,
        store=nothing,
        host_id="host",
        queue="queue",
        stack="stack",
        slots=nothing,
        options=WorkerOptions(),
    )
    spec = RolloutSpec(
        id=id,
        job_id="job/j",
        job_name="j",
        name="task__1",
        index=0,
        task=TaskRef(name="task", digest="d", pack=ArtifactRef(uri="file:///t", sha256="0" * 64, size=1)),
        agent=AgentSpec(name="policy", model="openai/scripted"),
        repeat=0,
        run=RunConfig(sandbox="local"),
        origin=Origin(host_id="h", job_dir="/jobs/j"),
    )
    return Model(context, spec, house.directory / "notes")


async def test_a_call_that_is_under_way_for_long_delays_a_checkpoint_and_does_not_fail_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = asyncio.Event()

    async def recover(visit: Visit) -> None:
        # The gateway asks again until the endpoint has recovered.
        await visit.send(answer(DONE) if ready.is_set() else answer(b"{}", "503 Service Unavailable"))

    monkeypatch.setattr(models, "QUIET_SEC", 0.1)
    async with raw_upstream(recover) as upstream:
        retries = RetryPolicy(max_retries=10_000, first_wait_sec=0.05, max_wait_sec=0.05)
        agent = await house.agent("openai-chat", upstream.base_url, retries=retries)
        model = model_of(house, agent.id)
        call = asyncio.create_task(agent.call(stream=False))
        await until(lambda: upstream.visits)
        with pytest.raises(BenchFlowError, match="still under way") as caught:
            await model.requests()
        assert caught.value.retryable
        ready.set()
        assert (await call).status == 200
        assert await model.requests() == 1


def test_a_checkpoint_is_tried_for_longer_than_the_gateway_asks_an_endpoint_again() -> None:
    assert models.QUIET_SEC * WorkerOptions().max_failures > RetryPolicy().total_sec + models.QUIET_SEC
