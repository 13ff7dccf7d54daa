"""The means of a job that was scored again: of each agent by itself."""

from __future__ import annotations

from datetime import UTC, datetime

from benchflow.contracts.branch import StateValue
from benchflow.contracts.rescoring import MeanChange, RescoredRollout
from benchflow.results.rescored import compute_mean_changes


def record(agent: str, before: float | None, after: float | None, value: StateValue | None = None) -> RescoredRollout:
    def rewards(reward: float | None) -> dict[str, float] | None:
        return None if reward is None else {"reward": reward}

    return RescoredRollout(
        rollout_name="r", task_name="t", agent=agent, scoring="s", recorded_digest="d", outcome="changed",
        before=rewards(before), rewards=rewards(after), value=value, finished_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def test_each_agent_has_means_of_its_own_of_the_rollouts_that_have_both_rewards() -> None:
    records = [record("oracle", 1.0, 0.5), record("oracle", 0.0, 0.5), record("oracle", None, 1.0)]
    records += [record("nop", 0.0, 0.25)]
    assert compute_mean_changes(records) == [
        MeanChange(agent="oracle", before=0.5, after=0.5, n=2),
        MeanChange(agent="nop", before=0.0, after=0.25, n=1),
    ]
    assert compute_mean_changes([record("oracle", None, None)]) == []


def test_values_of_states_have_means_of_their_own() -> None:
    value = StateValue(node="n1", aggregate="mean", value=0.5, n=2)
    records = [record("oracle", 1.0, 1.0), record("oracle", 0.0, 0.5, value)]
    assert compute_mean_changes(records) == [
        MeanChange(agent="oracle", before=1.0, after=1.0, n=1),
        MeanChange(agent="oracle", reward_kind="value", before=0.0, after=0.5, n=1),
    ]
