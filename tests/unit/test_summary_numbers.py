"""The numbers of a summary, against values computed by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.cli.report import reward_or_value
from benchflow.contracts.counts import Counts
from benchflow.contracts.rollout import RolloutOutcome, RolloutResult
from benchflow.paths import JobPaths
from benchflow.results.summary import interval, pass_at_k, read_results, summarize, write_summary


def result(task: str = "t", reward: float | None = 1.0, **changes: Any) -> RolloutResult:
    status = "errored" if reward is None else "passed" if reward >= 1 else "failed"
    now = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, Any] = {
        "rollout_name": f"{task}__0", "task_name": task, "job_name": "j", "workflow_id": f"job/j/r/{task}/oracle/0",
        "task_digest": "d", "agent": "oracle", "status": status, "started_at": now, "finished_at": now,
        "rewards": None if reward is None else {"reward": reward},
    }  # fmt: skip
    return RolloutResult(**(values | changes))


@pytest.mark.parametrize(
    ("passed", "n", "k", "expected"),
    [(0, 5, 1, 0.0), (5, 5, 3, 1.0), (1, 4, 1, 0.25), (1, 4, 2, 0.5), (2, 4, 2, 5 / 6), (3, 4, 2, 1.0), (1, 4, 4, 1.0)],
)
def test_pass_at_k_is_the_unbiased_estimator(passed: int, n: int, k: int, expected: float) -> None:
    assert pass_at_k(passed, n, k) == pytest.approx(expected)


def test_the_interval_is_the_normal_one() -> None:
    # Mean 0.5, standard deviation 1/sqrt(3), standard error 1/sqrt(12): 1.96 * 0.2887 = 0.5658.
    found = interval([0.0, 0.0, 1.0, 1.0])
    assert (found.mean, found.n) == (0.5, 4)
    assert found.low == pytest.approx(-0.06580, abs=1e-5)
    assert found.high == pytest.approx(1.06580, abs=1e-5)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert interval([0.7]).model_dump() == {"mean": 0.7, "low": None, "high": None, "n": 1}
    assert interval([]).mean is None


def test_only_what_was_measured_counts_in_the_mean() -> None:
    results = [result(reward=1.0), result(reward=0.5), result(reward=None), result(reward=None, status="cancelled")]
    summary = summarize("j", 6, results)
    assert (summary.total, summary.finished, summary.not_run) == (6, 4, 2)
    assert (summary.passed, summary.failed, summary.errored, summary.cancelled) == (1, 1, 1, 1)
    assert summary.mean_reward == 0.75
    assert summary.reward_interval.n == 2


def test_pass_at_k_is_averaged_over_tasks_and_an_error_is_no_pass() -> None:
    results = [result("a", r) for r in (1.0, 0.0, 0.0, None)] + [result("b", r) for r in (1.0, 1.0, 1.0, 1.0)]
    summary = summarize("j", 8, results)
    assert summary.pass_at_k == {
        "1": pytest.approx((0.25 + 1) / 2),
        "2": pytest.approx((0.5 + 1) / 2),
        "4": pytest.approx(1.0),
    }


def test_a_cancelled_rollout_is_no_attempt() -> None:
    results = [result(reward=1.0), result(reward=None, status="cancelled")]
    assert summarize("j", 2, results).pass_at_k == {"1": 1.0}


def test_errors_agents_phases_and_costs_are_summed_up() -> None:
    results = [
        result("a", 1.0, timing={"execute": 1.0}, cost_usd=0.5, n_input_tokens=10),
        result("b", None, error_category="readiness", timing={"execute": 3.0}, cost_usd=0.25),
        result("c", None, error_category="readiness", timing={"execute": 2.0}),
        result("d", 0.0, agent="nop", error_category="agent_exit"),
    ]
    summary = summarize("j", 4, results)
    assert summary.errors == {"readiness": 2, "agent_exit": 1}
    assert {agent: found.mean for agent, found in summary.by_agent.items()} == {"nop": 0.0, "oracle": 1.0}
    assert summary.phase_seconds == {"execute": 2.0}
    assert (summary.cost_usd, summary.n_input_tokens, summary.n_output_tokens) == (0.75, 10, None)


def test_agents_of_one_name_and_two_models_are_two(tmp_path: Path) -> None:
    results = [result(model="small", reward=0.0), result(model="large", reward=1.0)]
    assert list(summarize("j", 2, results).by_agent) == ["oracle:large", "oracle:small"]


def test_nothing_at_all_is_a_summary_too() -> None:
    summary = summarize("j", 3, [])
    assert (summary.mean_reward, summary.not_run, summary.pass_at_k, summary.errors) == (None, 3, {}, {})


def test_rows_are_written_once_each_and_in_order(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    for name in ("b", "a"):
        (tmp_path / f"{name}__0").mkdir()
        (tmp_path / f"{name}__0" / "result.json").write_text(result(name).model_dump_json())
    paths.results.write_text('{"an": "old row"}\n{"an": "old row"}\n')
    write_summary(paths, "j", 2)
    assert [r.task_name for r in read_results(paths)] == ["a", "b"]
    rows = paths.results.read_text().splitlines()
    assert len(rows) == 2 and '"task_name": "a"' in rows[0]


def test_several_keys_are_in_no_mean_and_no_pass_at_k_but_by_key() -> None:
    keyed = [result(status="scored", rewards={"correctness": correctness, "style": 1.0}) for correctness in (0.0, 0.5)]
    summary = summarize("j", 4, [*keyed, result(reward=1.0), result(reward=0.5)])
    assert (summary.scored, summary.passed, summary.failed, summary.errored) == (2, 1, 1, 0)
    assert (summary.mean_reward, summary.reward_interval.n, summary.by_agent["oracle"].n) == (0.75, 2, 2)
    assert summary.pass_at_k == {"1": 0.5, "2": 1.0}
    assert {key: (value.mean, value.n) for key, value in summary.by_key.items()} == {
        "correctness": (0.25, 2),
        "style": (1.0, 2),
    }
    assert summarize("j", 2, keyed).mean_reward is None


def test_a_job_counts_several_keys_as_finished_and_as_no_reward() -> None:
    outcome = RolloutOutcome(id="r", index=0, attempt=1, status="scored", rewards={"a": 1.0, "b": 0.0})
    counts = Counts().plus(outcome)
    assert (counts.finished, counts.scored, counts.rewarded, counts.reward_sum) == (1, 1, 0, 0.0)


def test_a_table_shows_each_of_several_keys() -> None:
    assert reward_or_value(result(status="scored", rewards={"a\x1b[2J": 0.5, "b": 1.0})) == "a␛ 0.5, b 1"
    assert reward_or_value(result(reward=0.5)) == "0.5"
