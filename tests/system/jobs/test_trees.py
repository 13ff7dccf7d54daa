"""Rollouts that branch, through the whole engine: children from one state, each for itself, and what it is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.running import run_tasks
from support.task_writer import BASE_IMAGE, write_step, write_task

from benchflow.contracts.rollout import RolloutResult
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.trajectories.values import tree_grpo

pytestmark = pytest.mark.local

STEPS = 3
SOLVE = """
echo "{step}" >> /root/log
echo "$(cat /proc/sys/kernel/random/uuid)" >> /root/who
"""
# A digit of what this very rollout has written is its reward.
TEST = """
cat /root/log > /logs/verifier/log
cat /root/who > /logs/verifier/who
printf '%d\\n' "0x$(tail -n 1 /root/who | cut -c1)" | awk '{print $1 / 15}' > /logs/verifier/reward.txt
"""


def stepped(root: Path, name: str = "stepped", steps: int = STEPS) -> Path:
    table = "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(steps))
    task = write_task(
        root,
        name,
        config='multi_step_reward_strategy = "final"\n' + table,
        dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n",
    )
    for number in range(steps):
        write_step(task, f"s{number}", solve=SOLVE.format(step=f"s{number}"), test=TEST)
    return task


def tree_of(result: RolloutResult) -> dict[str, dict[str, Any]]:
    assert result.directory is not None
    tree = json.loads((Path(result.directory) / "tree.json").read_bytes())
    return {node["id"]: node for node in tree["nodes"]}


def test_children_go_on_from_one_state_and_its_value_is_their_mean(module_jobs: Path, tmp_path: Path) -> None:
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 3}}
    result = run_tasks([stepped(tmp_path)], module_jobs, job_name="mean", branch=branch, sandbox="local")["stepped"]
    assert result.error is None
    nodes = tree_of(result)
    assert set(nodes) == {"n0", "n1"} | {f"n1.{child}/n{step}" for child in range(3) for step in (2, 3)}
    leaves = [nodes[f"n1.{child}/n3"] for child in range(3)]
    value = sum(leaf["rewards"]["reward"] for leaf in leaves) / 3
    assert result.reward == pytest.approx(value) == nodes["n1"]["value"]
    assert result.reward_kind == "value"
    assert (nodes["n1"]["n"], nodes["n1"]["failed"], nodes["n1"]["pending"]) == (3, {}, [])
    assert result.directory is not None
    who = set()
    for child in range(3):
        place = Path(result.directory) / "children" / f"n1.{child}"
        seen = (place / "steps" / "s2" / "verifier" / "who").read_text().split()
        assert (place / "steps" / "s2" / "verifier" / "log").read_text().split() == ["s0", "s1", "s2"]
        assert json.loads((place / "result.json").read_bytes())["reward_kind"] == "measured"
        who.add(seen[0])
        who.add(seen[1])
    # The first line is the parent's, the second each child's own.
    assert len(who) == 4


def test_children_branch_again_and_nothing_is_left(module_jobs: Path, tmp_path: Path) -> None:
    branch = {"policy": {"kind": "after_steps", "steps": [0, 1], "n": 2}, "max_depth": 2}
    task = stepped(tmp_path, "deep", steps=2)
    results = run_tasks([task], module_jobs, job_name="deep", branch=branch, sandbox="local")
    result = results["deep"]
    assert result.error is None
    nodes = tree_of(result)
    leaves = [node for node in nodes.values() if node["id"].endswith("/n2")]
    assert len(leaves) == 4
    value = sum(leaf["rewards"]["reward"] for leaf in leaves) / 4
    assert result.reward == pytest.approx(value) == nodes["n0"]["value"]
    for name in ("n0.0/n1", "n0.1/n1"):
        below = [leaf["rewards"]["reward"] for leaf in leaves if leaf["id"].startswith(name)]
        assert nodes[name]["value"] == pytest.approx(sum(below) / len(below))


def test_a_parent_goes_on_from_the_best_of_its_children(module_jobs: Path, tmp_path: Path) -> None:
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 3}, "horizon": 1, "then": "best"}
    results = run_tasks([stepped(tmp_path, "best")], module_jobs, job_name="best", branch=branch, sandbox="local")
    result = results["best"]
    assert result.error is None
    nodes = tree_of(result)
    children = [f"n1.{number}/n2" for number in range(3)]
    assert set(nodes) == {"n0", "n1", "n3", *children}
    best = max(children, key=lambda name: nodes[name]["returns"])
    assert nodes[best]["returns"] == nodes[nodes["n3"]["parent"]]["returns"]
    assert nodes["n1"]["value"] == pytest.approx(sum(nodes[name]["returns"] for name in children) / 3)
    assert (result.reward_kind, result.reward) == ("measured", nodes["n3"]["rewards"]["reward"])
    assert result.directory is not None
    place = Path(result.directory)
    own = (place / "steps" / "s2" / "verifier" / "who").read_text().split()
    chosen = nodes["n3"]["parent"].partition("/")[0]
    assert own[:2] == (place / "children" / chosen / "steps" / "s1" / "verifier" / "who").read_text().split()
    assert [step.step.name for step in result.steps] == ["s0", "s1", "s2"]


def test_nothing_is_kept_of_states_that_nobody_needs(module_jobs: Path, tmp_path: Path) -> None:
    branch = {"policy": {"kind": "every_n", "every": 1, "n": 2}, "horizon": 1, "then": "child:1"}
    results = run_tasks([stepped(tmp_path, "named")], module_jobs, job_name="named", branch=branch, sandbox="local")
    result = results["named"]
    assert result.error is None
    nodes = tree_of(result)
    # Where the second child has ended, which is where its parent goes on, it branches again.
    assert set(nodes) == {"n0", "n1", "n1.0/n2", "n1.1/n2", "n1.1/n2.0/n3", "n1.1/n2.1/n3"}
    assert result.reward == nodes["n1.1/n2.1/n3"]["rewards"]["reward"]
    state = StatePaths.default()
    assert list(state.checkpoints.glob("*.json")) == []
    assert [path.name for path in (state.root / "local" / "store" / "images").glob("bf-*")] == []


def test_trees_of_tree_grpo_grow_from_their_own_nodes(module_jobs: Path, tmp_path: Path) -> None:
    branch = {"policy": {"kind": "tree_grpo", "m": 2, "n": 2, "l": 1, "k": 3}}
    results = run_tasks([stepped(tmp_path, "grpo")], module_jobs, job_name="grpo", branch=branch, sandbox="local")
    result = results["grpo"]
    assert result.error is None
    nodes = tree_of(result)
    parents = {node["parent"] for node in nodes.values()}
    leaves = [node for node in nodes.values() if node["id"] not in parents]
    assert len(leaves) == 6
    by_tree = {tree: [leaf["returns"] for leaf in leaves if leaf["tree"] == tree] for tree in ("n0.0", "n0.1")}
    assert [len(returns) for returns in by_tree.values()] == [3, 3]
    wanted = tree_grpo(
        {tree: {leaf["id"]: leaf["returns"] for leaf in leaves if leaf["tree"] == tree} for tree in by_tree}
    )
    assert {leaf["id"]: leaf["advantages"]["tree_grpo"] for leaf in leaves} == pytest.approx(wanted)
    # What has begun in the middle of a chain has the files of what led there.
    assert result.directory is not None
    for leaf in leaves:
        place = RolloutPaths(Path(result.directory)).child(leaf["id"].rpartition("/")[0])
        assert (place.verifier_of("s2") / "log").read_text().split() == ["s0", "s1", "s2"]
    assert list(StatePaths.default().checkpoints.glob("*.json")) == []
