"""The numbers of a summary, of each agent by itself, against values computed by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.cli.job_report import format_score
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.counts import Counts
from benchflow.contracts.job import AgentSpec, JobSpec, TaskRef
from benchflow.contracts.rollout_records import RolloutOutcome, RolloutResult
from benchflow.paths import JobPaths
from benchflow.results.summary import AgentSummary, Summary, compute_pass_at_k, read_results, summarize, write_summary

PACK = ArtifactRef(uri="file:///x", sha256="0" * 64, size=0)


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
    assert compute_pass_at_k(passed, n, k) == pytest.approx(expected)


def job(*agents: str, tasks: tuple[str, ...] = ("t",), repeats: int = 1, **task: Any) -> JobSpec:
    refs = [TaskRef(name=name, digest="d", pack=PACK, **task) for name in tasks]
    return JobSpec(name="j", tasks=refs, agents=[AgentSpec.parse(agent) for agent in agents], repeats=repeats)


def of(agent: str, summary: Summary) -> AgentSummary:
    return summary.agents[agent]


def test_only_what_was_measured_counts_in_the_mean() -> None:
    results = [result(reward=1.0), result(reward=0.5), result(reward=None), result(reward=None, status="cancelled")]
    summary = summarize("j", 6, results)
    assert (summary.total, summary.finished, summary.not_run) == (6, 4, 2)
    assert (summary.passed, summary.failed, summary.errored, summary.cancelled) == (1, 1, 1, 1)
    assert summary.mean_reward == of("oracle", summary).reward.mean == 0.75
    assert summary.reward_interval == of("oracle", summary).reward
    assert of("oracle", summary).reward.n == 2


def test_no_figure_is_of_several_agents() -> None:
    results = [result("a", 1.0, timing={"execute": 1.0}), result("a", 0.0, agent="nop", timing={"execute": 3.0})]
    summary = summarize("j", 2, results)
    assert (summary.passed, summary.failed) == (1, 1)
    assert of("oracle", summary).model_dump(include={"passed", "failed", "pass_at_k", "phase_seconds"}) == {
        "passed": 1, "failed": 0, "pass_at_k": {"1": 1.0}, "phase_seconds": {"execute": 1.0},
    }  # fmt: skip
    assert (of("nop", summary).reward.mean, of("nop", summary).pass_at_k) == (0.0, {"1": 0.0})
    pooled = (summary.mean_reward, summary.reward_interval, summary.pass_at_k, summary.phase_seconds)
    assert pooled == (None, None, None, None)


def test_a_job_of_two_agents_pools_nothing_while_one_of_them_has_no_result_yet() -> None:
    summary = summarize("j", 4, [result(reward=1.0)], job("oracle", "nop", repeats=2))
    assert summary.mean_reward is None
    assert list(summary.agents) == ["oracle", "nop"]
    assert (of("oracle", summary).total, of("oracle", summary).not_run) == (2, 1)
    assert (of("nop", summary).total, of("nop", summary).not_run, of("nop", summary).reward.n) == (2, 2, 0)


def test_the_range_of_a_tasks_rewards_is_that_of_their_interval() -> None:
    results = [result("t", -0.5), result("t", 0.9)]
    found = of("oracle", summarize("j", 2, results, job("oracle", repeats=2, reward_range=(-1.0, 1.0)))).reward
    assert (found.low, found.high) == (-1.0, 1.0)


def test_pass_at_k_is_averaged_over_tasks_and_an_error_is_no_attempt() -> None:
    results = [result("a", r) for r in (1.0, 0.0, 0.0, None)] + [result("b", r) for r in (1.0, 1.0, 1.0, 1.0)]
    about = of("oracle", summarize("j", 8, results))
    # Task a has three measured rollouts, one of which passed: no k above 3 can be estimated.
    assert about.pass_at_k == {
        "1": pytest.approx((1 / 3 + 1) / 2),
        "2": pytest.approx((2 / 3 + 1) / 2),
        "3": pytest.approx(1.0),
    }
    assert (about.n_pass_tasks, about.errored) == (2, 1)


def test_a_task_without_a_measurement_is_in_no_pass_at_k() -> None:
    results = [result("a", 1.0), result("b", None)]
    about = of("oracle", summarize("j", 2, results, job("oracle", tasks=("a", "b"))))
    assert (about.pass_at_k, about.n_pass_tasks, about.errored) == ({"1": 1.0}, 1, 1)


def test_a_cancelled_rollout_is_no_attempt() -> None:
    results = [result(reward=1.0), result(reward=None, status="cancelled")]
    assert of("oracle", summarize("j", 2, results)).pass_at_k == {"1": 1.0}


def test_the_value_of_a_state_is_in_no_mean_of_measured_rewards() -> None:
    values = [result("a", 0.2, reward_kind="value"), result("b", 1.0, reward_kind="value")]
    summary = summarize("j", 3, [result("c", 0.5), *values])
    about = of("oracle", summary)
    assert summary.mean_reward == 0.5 and summary.n_values == about.n_values == 2
    assert (about.reward.mean, about.reward.n) == (0.5, 1)
    assert about.value is not None
    assert (about.value.mean, about.value.n, about.value.method) == (pytest.approx(0.6), 2, "t_by_task")
    assert (about.pass_at_k, about.n_pass_tasks) == ({"1": 0.0}, 1)
    assert of("oracle", summarize("j", 1, [result()])).value is None


def test_rewards_without_a_scalar_are_counted_and_have_means_of_their_keys() -> None:
    several = {"status": "scored", "rewards": {"correctness": 0.5, "style": 1.0}}
    results = [result("a", 0.0, **several), result("b", rewards={"reward": 1.0, "correctness": 1.0})]
    summary = summarize("j", 2, results)
    about = of("oracle", summary)
    assert (summary.scored, about.scored) == (1, 1)
    assert (about.reward.mean, about.reward.n, about.pass_at_k) == (1.0, 1, {"1": 1.0})
    assert {key: (one.mean, one.n) for key, one in about.by_key.items()} == {
        "correctness": (0.75, 2),
        "style": (1.0, 1),
    }


def test_errors_agents_phases_and_costs_are_summed_up() -> None:
    results = [
        result("a", 1.0, timing={"execute": 1.0}, cost_usd=0.5, n_input_tokens=10),
        result("b", None, error_category="readiness", timing={"execute": 3.0}, cost_usd=0.25),
        result("c", None, error_category="readiness", timing={"execute": 2.0}),
        result("d", 0.0, agent="nop", error_category="agent_exit"),
    ]
    summary = summarize("j", 4, results)
    assert (summary.errors, summary.errors_of_scored) == ({"readiness": 2}, {"agent_exit": 1})
    assert (of("oracle", summary).errors, of("oracle", summary).errors_of_scored) == ({"readiness": 2}, {})
    assert (of("nop", summary).errors, of("nop", summary).errors_of_scored) == ({}, {"agent_exit": 1})
    assert {agent: found.reward.mean for agent, found in summary.agents.items()} == {"nop": 0.0, "oracle": 1.0}
    assert of("oracle", summary).phase_seconds == {"execute": 2.0}
    assert (summary.cost_usd, summary.n_input_tokens, summary.n_output_tokens) == (0.75, 10, None)
    assert (of("oracle", summary).cost_usd, of("nop", summary).cost_usd) == (0.75, None)


def test_agents_of_one_name_and_two_models_are_two() -> None:
    results = [result(model="small", reward=0.0), result(model="large", reward=1.0)]
    assert list(summarize("j", 2, results).agents) == ["oracle:large", "oracle:small"]


def test_nothing_at_all_is_a_summary_too() -> None:
    summary = summarize("j", 3, [])
    assert (summary.mean_reward, summary.not_run, summary.agents, summary.errors) == (None, 3, {}, {})
    alone = summarize("j", 3, [], job("oracle", repeats=3))
    assert (alone.mean_reward, alone.pass_at_k, of("oracle", alone).not_run) == (None, {}, 3)


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
    about = of("oracle", summary)
    assert (summary.mean_reward, about.reward.n) == (0.75, 2)
    assert summary.pass_at_k == {"1": 0.5, "2": 1.0}
    assert {key: (value.mean, value.n) for key, value in about.by_key.items()} == {
        "correctness": (0.25, 2),
        "style": (1.0, 2),
    }
    assert summarize("j", 2, keyed).mean_reward is None


def test_a_job_counts_several_keys_as_finished_and_as_no_reward() -> None:
    outcome = RolloutOutcome(id="r", index=0, attempt=1, status="scored", rewards={"a": 1.0, "b": 0.0})
    counts = Counts().plus(outcome, "oracle")
    assert (counts.finished, counts.scored, counts.rewarded, counts.agents) == (1, 1, 0, {})


def test_a_table_shows_each_of_several_keys() -> None:
    assert format_score(result(status="scored", rewards={"a\x1b[2J": 0.5, "b": 1.0})) == "a␛ 0.5, b 1"
    assert format_score(result(reward=0.5)) == "0.5"
