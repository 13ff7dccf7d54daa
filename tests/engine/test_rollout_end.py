"""A rollout whose own code raises: it is reported with what was measured, torn down, and its job is notified."""

from __future__ import annotations

import pytest
from support.theatre import Theatre

from benchflow.contracts.rollout import RolloutTree, StepOutcome


async def test_an_error_of_the_engine_in_the_report_leaves_a_row_with_the_measured_reward(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: RolloutTree) -> RolloutTree:
        raise KeyError("broken")

    # Contracts are shared with the workflow's sandbox.
    monkeypatch.setattr(RolloutTree, "without_checkpoints", broken)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}
    job = await theatre.submit(theatre.stepped(2), branch=branch, retry={"max_retries": 0})
    (result,) = await theatre.results(job)
    assert (result.status, result.reward) == ("passed", 1.0)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("KeyError", "internal")
    assert not theatre.hall.open and theatre.hall.images == {}


async def test_an_error_of_the_engine_in_the_work_is_reported_and_torn_down(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(outcome: StepOutcome, **values: object) -> None:
        raise AssertionError("broken")

    monkeypatch.setattr(StepOutcome, "__init__", broken)
    job = await theatre.submit(retry={"max_retries": 0})
    (result,) = await theatre.results(job)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("AssertionError", "internal")
    assert not theatre.hall.open
