"""Register a rollout that begins a session: what the gateway is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateway_model import model_of

from benchflow.contracts.gateway import Registration
from benchflow.contracts.job import RunConfig
from benchflow.contracts.rollout_records import Step
from benchflow.errors import UnknownRolloutError
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.paths import StatePaths


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
    notes = tmp_path / "notes"
    notes.mkdir()
    # A gateway that does not know the rollout is told of it again.
    with pytest.raises(UnknownRolloutError):
        model = model_of(StatePaths(tmp_path / "state"), notes, "job/j/task__1", run)
        await model.begin_turn(Step(index=0, agent="policy"))
    assert [each.stall_sec for each in registered] == [stall]
