"""Jobs with a mode on the command line: how they are asked for, what is refused, and what is shown of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Bench

from benchflow.config_file import parse_mode, read_job_file
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.branch import ChildOutcome
from benchflow.contracts.job import AgentSpec, JobSpec, RunConfig, TaskRef
from benchflow.contracts.job_modes import GrpoMode, ValueMode
from benchflow.contracts.rollout_records import Failure, Node, RolloutResult, RolloutTree
from benchflow.errors import ConfigError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.mode_rows import make_rows
from benchflow.results.summary import read_results, read_spec, write_summary
from benchflow.results.write import write_rollout
from benchflow.tasks import init_task
from benchflow.trajectories.growth import grow_tree, merge_nodes

# --- asking for it -------------------------------------------------------------------------------------------


def stepped(root: Path, steps: int = 3) -> Path:
    """A task of so many steps."""
    task = init_task(root, "stepped")
    for step in range(steps):
        for file in ("tests/test.sh", "solution/solve.sh", "instruction.md"):
            place = task / "steps" / f"s{step}" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    return task


def test_a_mode_is_written_in_short() -> None:
    assert parse_mode("grpo") == GrpoMode()
    assert parse_mode("grpo:n=4,at=1") == GrpoMode(n=4, at=1)
    assert parse_mode("value:depths=0+2,n=3") == ValueMode(depths=(0, 2), n=3)


def test_a_file_says_it_in_short_or_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("paths: [t]\nmode: value:depths=0+2\n")
    assert read_job_file(file)["mode"] == ValueMode(depths=(0, 2))
    file.write_text("paths: [t]\nmode: {kind: value, depths: [0, 2]}\n")
    assert read_job_file(file)["mode"] == {"kind": "value", "depths": [0, 2]}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("gropo", "there is no mode 'gropo'"),
        ("grpo:depths=0", "grpo has no 'depths'"),
        ("grpo:n", "'n' is no KEY=VALUE"),
        ("grpo:n=2,n=3", "'n' is given twice"),
        ("grpo:n=1", "n: must be greater than or equal to 2"),
        ("value", "depths: is missing"),
        ("value:depths=1+1", "the depth 1 is given twice"),
    ],
)
def test_what_is_no_mode_is_refused_by_name(said: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mode(said)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("said", "key", "message"),
    [
        ("{kind: gropo}", "mode.kind", "must be 'grpo' or 'value', not 'gropo'"),
        ("{n: 3}", "mode.kind", "is missing"),
        ("{kind: grpo, m: 3}", "mode.m", "is not a known key"),
        ("{kind: value, depths: [0], n: 0}", "mode.n", "greater than or equal to 1"),
        ("gropo", "mode", "there is no mode 'gropo'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(bench: Bench, tmp_path: Path, said: str, key: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"paths: [t]\nmode: {said}\n")
    error = bench("submit", "--config", file, "--dry-run", "--json").json["error"]
    assert (error["file"], error["key"]) == (str(file), key)
    assert message in error["message"]


@pytest.mark.usefixtures("state")
def test_a_depth_that_a_task_does_not_have_is_refused_by_both(bench: Bench, task: Path) -> None:
    for mode, key in (("value:depths=0+1", "mode.depths"), ("grpo:at=1", "mode.at")):
        ran = bench("submit", task, "--sandbox", "local", "--mode", mode, "--dry-run", "--json")
        error = ran.json["error"]
        assert (ran.status, error["file"], error["key"]) == (2, "greet", key)
        assert "nothing is left to do at depth 1: the task has one step" in error["message"]
    assert bench("submit", task, "--sandbox", "local", "--mode", "value:depths=0", "--dry-run").status == 0


@pytest.mark.usefixtures("state")
def test_a_mode_and_a_branch_are_refused_together_and_the_command_line_wins(
    bench: Bench, task: Path, tmp_path: Path
) -> None:
    options = ["--sandbox", "local", "--dry-run"]
    ran = bench("submit", task, *options, "--mode", "grpo", "--branch", "group:n=2", "--json")
    assert (ran.status, ran.json["error"]["key"]) == (2, "mode")
    (tmp_path / "job.yaml").write_text("branch: group:n=2\n")
    ran = bench("submit", task, *options, "--config", tmp_path / "job.yaml", "--mode", "grpo:n=4")
    assert "grpo: groups at depth 0, n=4" in ran.out
    (tmp_path / "job.yaml").write_text("mode: grpo\n")
    ran = bench("submit", task, *options, "--config", tmp_path / "job.yaml", "--branch", "group:n=2")
    assert "branch group" in ran.out and "grpo" not in ran.out


@pytest.mark.usefixtures("state")
def test_what_a_branch_needs_a_mode_needs_too(bench: Bench, task: Path) -> None:
    ran = bench("submit", task, "--sandbox", "noop", "--mode", "grpo:n=2", "--dry-run", "--json")
    assert (ran.status, ran.json["error"]["type"]) == (2, "UnsupportedFeatureError")
    assert "takes no snapshots" in ran.json["error"]["message"]


# --- looking at it -------------------------------------------------------------------------------------------

LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="the sandbox \x1b[31mis gone\nfor good")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def child(start: str, number: int, step: int, reward: float | None) -> ChildOutcome:
    name = f"{start}.{number}/n{step}"
    if reward is None:
        return ChildOutcome(chain=f"{start}.{number}", number=number, failure=LOST)
    nodes = [Node(id=name, parent=start, step=step - 1, rewards={"reward": reward})]
    return ChildOutcome(
        chain=f"{start}.{number}", number=number, reward=reward, leaf=name, nodes=merge_nodes(nodes, [])
    )


def store(job: JobPaths, task: str, tree: RolloutTree, *, error: Failure | None = None) -> None:
    node = next((node for node in reversed(tree.nodes) if node.value is not None), None)
    result = RolloutResult(
        rollout_name=f"{task}__0",
        task_name=task,
        job_name=job.root.name,
        workflow_id=f"job/r/{task}/oracle/0",
        task_digest="0" * 64,
        agent="oracle",
        status="failed" if node is not None else "errored",
        rewards={"reward": node.value} if node is not None and node.value is not None else None,
        reward_kind="value",
        error=error,
        error_category=error.category if error is not None else None,
        started_at=MOMENT,
        finished_at=MOMENT,
    )
    write_rollout(job.rollout(result.rollout_name), result, tree, [])


def job_of(root: Path, mode: GrpoMode | ValueMode, tasks: list[str]) -> JobPaths:
    """A job's directory that says what it is."""
    pack = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, size=0)
    refs = [TaskRef(name=name, digest="0" * 64, pack=pack) for name in tasks]
    run = RunConfig(sandbox="local", mode=mode, branch=mode.branch)
    spec = JobSpec(name=root.name, tasks=refs, agents=[AgentSpec(name="oracle")], run=run)
    root.mkdir(parents=True)
    (root / "config.json").write_text(spec.model_dump_json())
    return JobPaths(root)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def groups(tmp_path: Path) -> JobPaths:
    """Three groups of four: one of which one child failed, one of which all did, and one that never began."""
    mode = GrpoMode(n=4)
    job = job_of(tmp_path / "jobs" / "groups", mode, ["all", "early", "some"])
    own = [Node(id="n0")]
    some = grow_tree("some", own, [child("n0", n, 1, reward) for n, reward in enumerate([0.0, None, 0.25, 1.0])])
    none = grow_tree("all", own, [child("n0", n, 1, None) for n in range(4)])
    store(job, "some", some)
    store(job, "all", none, error=LOST)
    store(job, "early", RolloutTree(rollout="early", root="n0", nodes=own), error=LOST)
    trajectory = job.rollout("some__0").child("n0.2").trajectory
    trajectory.parent.mkdir(parents=True)
    trajectory.write_text("{}\n")
    write_summary(job, "groups", 3, read_spec(job))
    return job


def test_a_line_a_group_names_what_failed_and_has_no_number_for_it(groups: JobPaths) -> None:
    none, early, some = lines(groups.groups)
    assert [leaf["node"] for leaf in some["leaves"]] == ["n0.0/n1", "n0.2/n1", "n0.3/n1"]
    assert (some["n"], some["mean"]) == (3, pytest.approx(1.25 / 3))
    assert list(some["failed"]) == ["n0.1"] and some["error"] is None
    assert sum(leaf["advantages"]["grpo"] for leaf in some["leaves"]) == pytest.approx(0.0)
    assert some["leaves"][1]["trajectory"] == ["some__0/children/n0.2/trajectory/acp_trajectory.jsonl"]
    for row, error in ((none, "none of its 4 children could be measured"), (early, "sandbox_lost: the sandbox")):
        assert (row["n"], row["mean"], row["std"], row["leaves"]) == (0, None, None, [])
        assert row["error"].startswith(error)
    assert list(none["failed"]) == ["n0.0", "n0.1", "n0.2", "n0.3"]


@pytest.mark.usefixtures("state")
def test_groups_are_shown_with_their_returns_and_where_their_file_is(
    bench: Bench, groups: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = bench("results", groups.root).out
    assert "0.417  0.52  3  1 failed: n0.1  0.0 0.25 1.0  sandbox_lost: the sandbox ␛is gone" in shown
    assert "none of its 4 children could be measured" in shown
    assert f"groups   {groups.groups}\n" in shown
    assert "mean V(s) 0.417 n=1" in shown and "V: V(s) of rollouts that branched" in shown
    assert bench("job", "show", "groups", "--jobs-dir", groups.root.parent).out.count("none of its 4") == 1
    assert bench("results", groups.root, "--json").json["groups"] == lines(groups.groups)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [line for line in bench("results", groups.root).out.splitlines() if line.startswith((" all ", " some "))]
    assert len(rows) == 4 and max(map(len, rows)) <= 80


@pytest.mark.usefixtures("state")
def test_values_are_shown_by_task_and_depth(bench: Bench, tmp_path: Path) -> None:
    mode = ValueMode(depths=(0, 2), n=2)
    job = job_of(tmp_path / "jobs" / "values", mode, ["short", "whole"])
    own = [Node(id="n0"), *(Node(id=f"n{k}", parent=f"n{k - 1}", step=k - 1) for k in (1, 2, 3))]
    at_0 = [child("n0", number, 1, reward) for number, reward in enumerate([0.0, 1.0])]
    at_2 = [child("n2", number, 3, reward) for number, reward in enumerate([None, 0.75])]
    store(job, "whole", grow_tree("whole", own, [*at_0, *at_2], returns=0.5))
    store(job, "short", grow_tree("short", own[:2], at_0, returns=0.25))
    write_summary(job, "values", 2, read_spec(job))
    rows = lines(job.values)
    assert [(row["task"], row["depth"], row["value"], row["n"], row["stderr"]) for row in rows] == [
        ("short", 0, 0.5, 2, 0.5),
        ("short", 2, None, 0, None),
        ("whole", 0, 0.5, 2, 0.5),
        ("whole", 2, 0.75, 1, None),
    ]
    assert rows[1]["error"] == "the rollout ended before it came to this depth"
    assert (list(rows[3]["failed"]), rows[3]["returns"]) == (["n2.0"], {"n2.1": 0.75})
    shown = bench("results", job.root).out
    assert "V(s)" in shown and "the rollout ended before it came to this depth" in shown
    assert "1 failed: n2.0  sandbox_lost: the sandbox" in shown
    assert f"values   {job.values}\n" in shown


def test_a_rollout_that_was_cancelled_or_has_lost_its_tree_does_not_stop_the_others(groups: JobPaths) -> None:
    (groups.rollout("some__0").tree).unlink()
    paths = RolloutPaths(groups.root / "all__0")
    result = RolloutResult.model_validate_json(paths.result.read_bytes())
    paths.result.write_text(result.model_copy(update={"status": "cancelled"}).model_dump_json())
    rows = make_rows(GrpoMode(n=4), read_results(groups))
    assert [(row.task, row.n) for row in rows] == [("early", 0), ("some", 0)]
