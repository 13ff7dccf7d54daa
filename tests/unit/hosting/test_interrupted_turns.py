"""A turn that ends by the engine's own note is an outcome of a rollout that was cancelled, and of no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchflow.contracts.agent import AskUser, Session, Stop, StopReason, TurnCounts, TurnRequest
from benchflow.contracts.rollout_records import Step
from benchflow.errors import StackError
from benchflow.hosting.agent_turn import SessionTurn
from benchflow.secrets import Redactor
from benchflow.trajectories.journal import NodeWriter


class EndedSession(Session):
    """A session whose turn has ended in one way."""

    def __init__(self, ended_by: Stop | None) -> None:
        self.counts = TurnCounts()
        self._ended_by = ended_by

    async def was_begun(self, turn: int) -> bool:
        return True

    async def prompt(self, turn: TurnRequest) -> StopReason:
        return StopReason("cancelled", self._ended_by)

    def cancel(self, turn: int) -> None:
        pass

    def on_ask_user(self, answer: AskUser) -> None:
        pass

    async def end(self) -> None:
        pass


async def take(session: Session, directory: Path) -> str:
    spec = SimpleNamespace(run=SimpleNamespace(permissions="auto"))
    record = SimpleNamespace(protocol="acp")
    rollout: Any = SimpleNamespace(
        redact=Redactor({}), find_gateway_model=lambda session: None, spec=spec, record=record
    )
    work: Any = SimpleNamespace(step=Step(index=0, agent="any"), session=None, answers=(), goes_on=False)
    turn = SessionTurn(rollout, work, "go")
    return (await turn.run(session, NodeWriter(directory / "trajectory.jsonl", "n1", "agent"))).stop_reason


async def test_a_turn_that_the_engine_has_stopped_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the engine stopped the agent"):
        await take(EndedSession("cancelled"), tmp_path)


async def test_a_turn_that_an_agent_ends_by_itself_as_cancelled_counts(tmp_path: Path) -> None:
    assert await take(EndedSession(None), tmp_path) == "cancelled"
