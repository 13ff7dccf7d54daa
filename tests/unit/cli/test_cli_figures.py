"""A job's figures on a terminal: of each agent by itself, with n and the method of the interval."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.command_line import Bench
from support.stored_jobs import Past, store_job, write_task

from benchflow.contracts.rollout_records import Failure, RolloutResult
from benchflow.paths import JobPaths
from benchflow.results.summary import read_results, read_spec, write_summary

LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="gone")
PAST = {"first": Past(), "second/0": Past({None: 0.5}), "second/1": Past(error=LOST)}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two agents, `two`, in which `nop` never earns anything, and the like of `oracle` alone, `alone`."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    tasks = [write_task(tmp_path / "tasks", name) for name in ("first", "second")]
    for name, agents in (("alone", ["oracle"]), ("two", ["oracle", "nop"])):
        job = JobPaths(
            asyncio.run(store_job(tasks, tmp_path / "jobs", PAST, name=name, agents=agents, repeats=2, sandbox="noop"))
        )
        for result in read_results(job):
            if result.agent == "nop" and result.rewards is not None:
                earned_nothing(result)
        write_summary(job, name, len(agents) * 4, read_spec(job))
    return tmp_path / "jobs"


def earned_nothing(result: RolloutResult) -> None:
    changed = result.model_copy(update={"rewards": {"reward": 0.0}, "status": "failed"})
    (Path(str(result.directory)) / "result.json").write_text(changed.model_dump_json())


def rows(out: str, agent: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == [agent]]


def test_results_have_a_row_of_figures_for_each_agent_and_none_for_all(bench: Bench, jobs: Path) -> None:
    shown = bench("results", "two", "--jobs-dir", jobs).out
    oracle, nop = rows(shown, "oracle"), rows(shown, "nop")
    # passed, failed, errored; mean, n, the interval, and its method.
    assert oracle[0] == ["oracle", "2", "1", "1", "0.833", "3", "0.0", "…", "1.0", "t", "by", "task"]
    assert nop[0] == ["nop", "0", "3", "1", "0.0", "3", "0.0", "…", "0.658", "Wilson", "by", "task"]
    # pass@1, and the number of tasks: of the second one a single rollout was measured.
    assert (oracle[1], nop[1]) == (["oracle", "0.5", "2"], ["nop", "0.0", "2"])
    assert "errored rollouts have no reward" in shown
    assert "errors   oracle:  sandbox_lost 1" in shown and "errors   nop:  sandbox_lost 1" in shown
    assert "8 rollouts:  2 passed · 4 failed · 2 errored\n" in shown


def test_tokens_that_were_estimated_and_errors_of_scored_rollouts_are_told_apart(bench: Bench, jobs: Path) -> None:
    job = JobPaths(jobs / "alone")
    counted, guessed = (result for result in read_results(job) if result.task_name == "first")
    tokens = {"n_input_tokens": 2000, "n_output_tokens": 2200, "error_category": "agent_timeout"}
    for result, estimated in ((counted, 0), (guessed, 3)):
        changed = result.model_copy(update={**tokens, "n_estimated_calls": estimated})
        (Path(str(result.directory)) / "result.json").write_text(changed.model_dump_json())
    write_summary(job, "alone", 4, read_spec(job))
    shown = bench("results", "alone", "--jobs-dir", jobs).out
    assert shown.count(" 4.2k ") == shown.count(" ~4.2k ") == 1
    assert "· ~8.4k tokens" in shown
    assert "errors   sandbox_lost 1\nscored   after agent_timeout 2\n" in shown


def test_a_rollout_that_was_not_started_has_no_time(bench: Bench, jobs: Path) -> None:
    stopped = Failure(type="NotStartedError", category="not_started", message="5 rollouts failed alike")
    (result,) = (one for one in read_results(JobPaths(jobs / "alone")) if one.status == "errored")
    changed = result.model_copy(update={"status": "not_started", "error": stopped, "error_category": stopped.category})
    (Path(str(result.directory)) / "result.json").write_text(changed.model_dump_json())
    lines = bench("results", "alone", "--jobs-dir", jobs).out.splitlines()
    (row,) = (line.split() for line in lines if " – not_started " in line)
    assert row[row.index("not_started") + 1] == "–"
    assert sum(" 0.0 s " in line for line in lines) == 3


@pytest.mark.parametrize("command", ["results", "job show"])
def test_the_only_agents_mean_is_in_the_last_line(bench: Bench, jobs: Path, command: str) -> None:
    shown = bench(*command.split(), "alone", "--jobs-dir", jobs).out
    assert "4 rollouts:  2 passed · 1 failed · 1 errored · mean reward 0.833 n=3 (95 %: 0.0 … 1.0)" in shown


def test_a_job_is_shown_with_each_agents_figures(bench: Bench, jobs: Path) -> None:
    shown = bench("job", "show", "two", "--jobs-dir", jobs).out
    assert ["oracle", "2", "1", "1", "0.833", "3", "0.0", "…", "1.0", "t", "by", "task"] in rows(shown, "oracle")
    assert "8 rollouts:  2 passed · 4 failed · 2 errored\n" in shown


def test_a_list_of_jobs_has_no_mean_of_several_agents(bench: Bench, jobs: Path) -> None:
    shown = bench("job", "list", "--jobs-dir", jobs).out
    assert rows(shown, "alone")[0][1:6] == ["4/4", "2", "1", "0.833", "n=3"]
    assert rows(shown, "two")[0][1:6] == ["8/8", "2", "2", "2", "agents"]


def test_json_has_the_figures_by_agent(bench: Bench, jobs: Path) -> None:
    found = bench("results", "two", "--jobs-dir", jobs, "--json").json["summary"]
    assert found == json.loads((jobs / "two" / "summary.json").read_text())
    assert (found["mean_reward"], found["reward_interval"], found["pass_at_k"]) == (None, None, None)
    assert found["agents"]["nop"]["reward"]["method"] == "wilson_by_task"
    assert bench("results", "alone", "--jobs-dir", jobs, "--json").json["summary"]["mean_reward"] == pytest.approx(
        5 / 6
    )


def test_a_summary_of_an_earlier_version_is_made_anew(bench: Bench, jobs: Path) -> None:
    file = jobs / "two" / "summary.json"
    file.write_text(json.dumps({"job": "two", "total": 8, "mean_reward": 0.42, "by_agent": {}}))
    ran = bench("job", "list", "--jobs-dir", jobs, "--json")
    assert ran.err == ""
    assert {row["job"]: row["mean_reward"] for row in ran.json["jobs"]} == {"alone": pytest.approx(5 / 6), "two": None}


def test_rewards_without_a_scalar_are_shown_by_key(bench: Bench, jobs: Path) -> None:
    for result in read_results(JobPaths(jobs / "alone")):
        changed = result.model_copy(
            update={"rewards": {"correctness": 0.5}, "status": "scored", "error_category": None}
        )
        (Path(str(result.directory)) / "result.json").write_text(changed.model_dump_json())
    shown = bench("results", "alone", "--jobs-dir", jobs).out
    assert "rewards  correctness 0.5 n=4   (4 without a scalar reward)" in shown
    assert rows(shown, "oracle")[0] == ["oracle", "0", "0", "0", "4", "–", "0", "–"]
    assert "mean reward" not in shown.splitlines()[-2]
