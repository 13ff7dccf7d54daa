"""The results directory: which files, which keys, what their values look like."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import run
from support.system_job import Results, SystemTasks
from support.task_writer import write_task

from benchflow.cli.resume import plan_again
from benchflow.errors import UntrustedJobError
from benchflow.paths import JobPaths
from benchflow.provenance import is_own
from benchflow.results.summary import Summary, read_spec

pytestmark = pytest.mark.docker

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def system_tasks(root: Path) -> SystemTasks:
    task = write_task(
        root,
        "kept",
        solve="echo working; touch /root/answer\n",
        test='echo checking; echo \'{"reward": 0.75, "speed": 2, "items": {"a": 1}}\' > /logs/verifier/reward.json\n',
    )
    return {"docker": [task]}


@pytest.fixture
def job(docker_job: Path) -> JobPaths:
    return JobPaths(docker_job)


@pytest.fixture
def rollout(docker_results: Results) -> Path:
    return Path(str(docker_results["kept"].directory))


def test_a_job_is_known_to_its_submitter_alone(
    job: JobPaths, run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(run.stack_state(run_directory)))
    copy = JobPaths(tmp_path / "jobs" / job.root.name)
    shutil.copytree(job.root, copy.root)
    assert is_own(job) and is_own(copy)
    assert plan_again(copy.root.name, copy.root.parent, concurrency=1, context_root=None).total == read_spec(job).total
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "of-somebody-else"))
    with pytest.raises(UntrustedJobError):
        plan_again(copy.root.name, copy.root.parent, concurrency=1, context_root=None)


def test_the_job_directory_holds_what_the_format_names(job: JobPaths, rollout: Path) -> None:
    rollouts = {path.name for path in job.root.iterdir() if path.is_dir()}
    assert {path.name for path in job.root.iterdir()} == {
        "summary.json",
        "results.jsonl",
        "config.json",
        "config.json.mac",
    } | rollouts
    assert rollout.name in rollouts and rollout.parent == job.root
    assert re.fullmatch(r"kept__[0-9a-f]{12}", rollout.name)


def test_the_rollout_directory_holds_what_the_format_names(rollout: Path) -> None:
    files = {str(path.relative_to(rollout)) for path in rollout.rglob("*") if path.is_file()}
    assert files == {
        "config.json",
        "result.json",
        "timing.json",
        "prompts.json",
        "rewards.jsonl",
        "tree.json",
        "agent/oracle.txt",
        "evidence/baseline.json",
        "evidence/hardening.json",
        "evidence/settled.json",
        "trajectory/acp_trajectory.jsonl",
        "verifier/reward.json",
        "verifier/test-stdout.txt",
    }
    directories = {path.name for path in rollout.iterdir() if path.is_dir()}
    assert directories == {"agent", "trajectory", "verifier", "evidence", "artifacts", "trainer"}
    assert (rollout / "agent" / "oracle.txt").read_text() == "working\n"
    assert (rollout / "verifier" / "test-stdout.txt").read_text() == "checking\n"


def test_the_trajectory_has_the_keys_that_readers_expect(rollout: Path) -> None:
    prompt, oracle = lines(rollout / "trajectory" / "acp_trajectory.jsonl")
    ours = {"seq", "ts", "node", "role"}
    assert prompt.keys() == {"type", "text"} | ours
    assert oracle.keys() == {"type", "command", "return_code", "stdout"} | ours
    assert (prompt["type"], prompt["text"]) == ("user_message", "Make the answer.")
    assert (oracle["type"], oracle["command"]) == ("oracle", "/solution/solve.sh")
    assert (oracle["return_code"], oracle["stdout"]) == (0, "working\n")
    assert [line["seq"] for line in (prompt, oracle)] == [0, 1]
    assert all(RFC3339.fullmatch(line["ts"]) for line in (prompt, oracle))
    assert {line["node"] for line in (prompt, oracle)} == {"n1"}


def test_rewards_are_events(rollout: Path) -> None:
    events = lines(rollout / "rewards.jsonl")
    assert events
    for event in events:
        assert event.keys() == {
            "ts", "type", "source", "value", "tag", "step_index", "space", "granularity", "meta"
        }  # fmt: skip
        assert RFC3339.fullmatch(event["ts"])
    terminal = [event for event in events if event["type"] == "terminal"]
    assert [(event["value"], event["source"]) for event in terminal] == [(0.75, "reward.json")]


def test_the_result_has_the_keys_that_readers_expect(rollout: Path) -> None:
    result = read(rollout / "result.json")
    assert result.keys() >= {
        "task_name", "rollout_name", "rewards", "agent", "model", "n_tool_calls", "n_prompts", "error",
        "error_category", "verifier_error", "started_at", "finished_at", "timing", "task_digest", "workflow_id",
        "n_input_tokens", "n_output_tokens", "cost_usd", "tree",
    }  # fmt: skip
    assert result["rewards"] == {"reward": 0.75, "speed": 2.0, "a": 1.0}
    assert RFC3339.fullmatch(result["started_at"]) and RFC3339.fullmatch(result["finished_at"])
    assert "trajectory" not in result


def test_timing_prompts_and_tree_are_files_of_their_own(rollout: Path) -> None:
    result = read(rollout / "result.json")
    assert read(rollout / "timing.json") == result["timing"]
    assert read(rollout / "prompts.json") == [{"step": None, "role": "agent", "text": "Make the answer."}]
    tree = read(rollout / "tree.json")
    assert (tree["rollout"], tree["root"]) == (result["workflow_id"], "n0")
    root, leaf = tree["nodes"]
    assert (root["id"], root["parent"]) == ("n0", None)
    assert (leaf["id"], leaf["parent"], leaf["step"], leaf["events"]) == ("n1", "n0", 0, [0, 2])
    assert leaf["rewards"]["reward"] == 0.75


def test_the_configuration_that_ran_is_kept(job: JobPaths, rollout: Path) -> None:
    config = read(rollout / "config.json")
    assert config["agent"]["name"] == "oracle"
    assert config["task"]["digest"] == read(rollout / "result.json")["task_digest"]
    assert read(job.config)["name"] == job.root.name


def test_the_job_has_a_row_a_rollout_and_a_summary(job: JobPaths, rollout: Path) -> None:
    rows = {row["rollout_name"]: row for row in lines(job.results)}
    assert len(rows) == len(lines(job.results)) == len([path for path in job.root.iterdir() if path.is_dir()])
    assert rows[rollout.name]["reward"] == 0.75 and "trajectory" not in rows[rollout.name]
    summary = Summary.model_validate(read(job.summary))
    counted = Counter(row["status"] for row in rows.values())
    assert (summary.total, summary.not_run) == (len(rows), 0)
    assert (summary.passed, summary.failed, summary.errored) == tuple(
        counted[it] for it in ("passed", "failed", "errored")
    )
    rewards = [row["reward"] for row in rows.values() if row["reward"] is not None]
    assert summary.mean_reward == pytest.approx(sum(rewards) / len(rewards))
    assert list(summary.pass_at_k) == ["1"]
    assert {"provision", "execute", "verify"} <= summary.phase_seconds.keys()


def test_no_partial_file_is_left(job: JobPaths) -> None:
    assert list(job.root.rglob(".*")) == []
