"""A turn that ends by the engine's own note is an outcome of a rollout that was cancelled, and of no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchflow.contracts.rollout import Step
from benchflow.errors import TurnInterruptedError
from benchflow.hosting.agent_turn import AgentTurn
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.limits import Stop
from benchflow.planes.agent.acp.session import Turn
from benchflow.secrets import Redactor
from benchflow.trajectories.journal import NodeWriter


class Talk:
    """A session whose turn has ended in one way."""

    def __init__(self, ended_by: Stop | None) -> None:
        self._ended_by = ended_by

    async def turn(self, number: int, prompt: str, sink: Any, reading: Reading, limits: Any) -> Turn:
        return Turn("cancelled", reading, self._ended_by)

    async def close(self) -> None:
        pass


async def take(talk: Any, directory: Path) -> str:
    rollout: Any = SimpleNamespace(redact=Redactor({}), gateway_model=lambda session: None)
    work: Any = SimpleNamespace(step=Step(index=0, agent="any"), session=None)
    turn = AgentTurn(rollout, work, "go")
    return (await turn.take(talk, NodeWriter(directory / "trajectory.jsonl", "n1", "agent"))).stop_reason


async def test_a_turn_that_the_engine_has_stopped_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(TurnInterruptedError):
        await take(Talk("cancelled"), tmp_path)


async def test_a_turn_that_an_agent_ends_by_itself_as_cancelled_counts(tmp_path: Path) -> None:
    assert await take(Talk(None), tmp_path) == "cancelled"
