"""Trees of rollouts that branched, as commands show them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.command_line import Bench
from support.system_job import SystemTasks
from support.task_writer import write_step, write_task

pytestmark = pytest.mark.local

STEPS = ("first", "second")
WINS = "echo 1 > /logs/verifier/reward.txt\n"


def system_tasks(root: Path) -> SystemTasks:
    """Add a task of two steps, which everybody solves."""
    table = "".join(f'[[steps]]\nname = "{step}"\n' for step in STEPS)
    task = write_task(root, "forked", config=table, dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n")
    for step in STEPS:
        write_step(task, step, solve="true\n", test=WINS)
    return {"groups": [task]}


@pytest.fixture
def rollout(groups_job: Path, tmp_path: Path) -> Path:
    """A rollout of which two children went on after its first step, the only one of its job in this copy."""
    copy = tmp_path / "jobs" / "groups"
    shutil.copytree(groups_job, copy, ignore=shutil.ignore_patterns("*__*"))
    (rollout,) = groups_job.glob("forked__*")
    shutil.copytree(rollout, copy / rollout.name)
    return copy / rollout.name


def test_a_table_says_that_a_reward_is_a_value_and_where_its_tree_is_drawn(bench: Bench, rollout: Path) -> None:
    ran = bench("results", rollout.parent)
    assert ran.status == 0, ran.out + ran.err
    assert " V 1.0 ±0.0 n=2 " in ran.out
    assert f"tree     bench tree show {rollout}\n" in ran.out


def test_a_tree_is_shown_by_its_directory_and_by_its_name(bench: Bench, groups_job: Path) -> None:
    (rollout,) = groups_job.glob("forked__*")
    ways = [[rollout], [rollout / "children" / "n1.0"], ["groups/forked", "--jobs-dir", groups_job.parent]]
    shown = [bench("tree", "show", *way) for way in ways]
    assert [ran.status for ran in shown] == [0, 0, 0], shown[0].err
    assert len({ran.out for ran in shown}) == 1
    assert "8 nodes" not in shown[0].out and "4 nodes, 2 leaves" in shown[0].out
    assert "V=1.0±0.0 n=2" in shown[0].out
    assert "n1.0/n2" in shown[0].out and "n1.1/n2" in shown[0].out


def test_children_are_folded_where_that_is_asked_for_and_never_in_a_pipe(bench: Bench, rollout: Path) -> None:
    folded = bench("tree", "show", rollout, "--depth", "0").out
    assert "└─ … 2 children  return=1.0 … 1.0, mean 1.0\n" in folded and "n1.0/n2" not in folded
    for whole in (["--all"], ["--limit", "1"], ["--depth", "1"]):
        assert bench("tree", "show", rollout, *whole).out == bench("tree", "show", rollout).out
    assert bench("tree", "show", rollout, "--limit", "0").status == 2


def test_a_tree_is_data_too(bench: Bench, rollout: Path) -> None:
    tree = bench("tree", "show", rollout, "--json").json
    assert (tree["root"], tree["directory"]) == ("n0", str(rollout))
    assert {node["id"]: node["events"] for node in tree["nodes"]}["n1.1/n2"] == [0, 2]
    rows = bench("results", rollout.parent, "--json").json["rollouts"]
    assert [(row["reward_kind"], row["value"]["n"], row["value"]["stderr"]) for row in rows] == [("value", 2, 0.0)]


def test_the_path_to_a_leaf_is_shown_through_all_files(bench: Bench, rollout: Path) -> None:
    ran = bench("tree", "path", rollout, "n1.1/n2")
    assert ran.status == 0, ran.err
    assert ran.out.index("Do first.") < ran.out.index("Do second.")
    lines = [json.loads(line) for line in bench("tree", "path", rollout, "n1.1/n2", "--json").out.splitlines()]
    assert [(line["seq"], line["node"]) for line in lines] == [(0, "n1"), (1, "n1"), (2, "n1.1/n2"), (3, "n1.1/n2")]
    ran = bench("tree", "path", rollout, "n9")
    assert ran.status == 2
    assert "n1.0/n2, n1.1/n2" in ran.err


def test_children_that_failed_are_named_and_one_that_runs_is_shown(bench: Bench, rollout: Path, tmp_path: Path) -> None:
    job = tmp_path / "forked"
    shutil.copytree(rollout.parent, job)
    rollout = job / rollout.name
    tree = json.loads((rollout / "tree.json").read_bytes())
    failure = {"type": "AgentExitError", "category": "agent_exit", "message": "it ended with 3"}
    tree["nodes"][1] |= {"n": 1, "stderr": None, "variance": None, "failed": {"n1.1": failure}}
    (rollout / "tree.json").write_text(json.dumps(tree))
    ran = bench("results", job)
    assert " V 1.0 n=1 " in ran.out
    assert "of the 2 children of n1, 1 have no return: n1.1: agent_exit: it ended with 3" in ran.out
    assert "failed: it ended with 3" in bench("tree", "show", rollout).out
    tree["nodes"][1] |= {"failed": {}, "pending": ["n1.2"]}
    (rollout / "tree.json").write_text(json.dumps(tree))
    (rollout / "result.json").unlink()
    ran = bench("tree", "show", rollout)
    assert "n1.2  still running" in ran.out
    assert "this is how far it has grown" in ran.out


def test_what_has_no_tree_says_what_to_do(bench: Bench, rollout: Path, tmp_path: Path) -> None:
    ran = bench("tree", "show", rollout.parent)
    assert ran.status == 2
    assert rollout.name in ran.err
    copy = tmp_path / rollout.name
    shutil.copytree(rollout, copy)
    (copy / "tree.json").unlink()
    ran = bench("tree", "show", copy)
    assert ran.status == 2
    assert "has no tree yet" in ran.err
