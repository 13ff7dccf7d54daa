"""What the gateway is told of a rollout that begins a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow.activities.context import WorkerContext
from benchflow.activities.models import Model
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.gateway import Registration
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.contracts.options import WorkerOptions
from benchflow.contracts.rollout import Step
from benchflow.errors import UnknownRolloutError
from benchflow.gateway.client import GatewayClient
from benchflow.paths import StatePaths


def model_of(directory: Path, run: RunConfig) -> Model:
    nothing: Any = None
    context = WorkerContext(
        client=nothing,
        paths=StatePaths(directory / "state"),
        store=nothing,
        host_id="host",
        queue="queue",
        stack="stack",
        slots=nothing,
        options=WorkerOptions(),
    )
    spec = RolloutSpec(
        id="job/j/task__1",
        job_id="job/j",
        job_name="j",
        name="task__1",
        index=0,
        task=TaskRef(name="task", digest="d", pack=ArtifactRef(uri="file:///t", sha256="0" * 64, size=1)),
        agent=AgentSpec(name="policy", model="openai/scripted"),
        repeat=0,
        run=run,
        origin=Origin(host_id="h", job_dir=str(directory / "jobs" / "j")),
    )
    (directory / "notes").mkdir()
    return Model(context, spec, directory / "notes")


@pytest.mark.parametrize(("idle", "stall"), [(None, 600), (10, 600), (1800, 1800)])
async def test_an_endpoint_may_be_silent_for_as_long_as_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: float | None, stall: float
) -> None:
    registered: list[Registration] = []

    async def register(_: GatewayClient, registration: Registration) -> None:
        registered.append(registration)

    async def attribute(_: GatewayClient, id: str, **__: object) -> None:
        raise UnknownRolloutError(id)

    monkeypatch.setattr(GatewayClient, "register", register)
    monkeypatch.setattr(GatewayClient, "attribute", attribute)
    run = RunConfig() if idle is None else RunConfig(agent_idle_timeout_sec=idle)
    # A gateway that does not know the rollout is told of it again.
    with pytest.raises(UnknownRolloutError):
        await model_of(tmp_path, run).begin_turn(Step(index=0, agent="policy"))
    assert [each.stall_sec for each in registered] == [stall]
