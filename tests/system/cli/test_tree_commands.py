"""Rollouts that branch, on the command line: how they are asked for, what is refused, how trees are shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Bench, Ran
from typer.testing import CliRunner

from benchflow.cli.app import app
from benchflow.config_file import branch_config, read_job_file, rollout_config_from_yaml
from benchflow.contracts.branch import AfterSteps, EverySteps, Group
from benchflow.errors import ConfigError
from benchflow.tasks import init_task

STEPPED = """
[[steps]]
name = "first"

[[steps]]
name = "second"
"""


def stepped(root: Path) -> Path:
    """A task of two steps, which everybody solves."""
    task = root / "stepped"
    (task / "environment").mkdir(parents=True)
    (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
    for step in ("first", "second"):
        for name, body in {"tests/test.sh": "echo 1 > /logs/verifier/reward.txt", "solution/solve.sh": "true"}.items():
            file = task / "steps" / step / name
            file.parent.mkdir(parents=True)
            file.write_text(f"#!/bin/sh\n{body}\n")
            file.chmod(0o755)
        (task / "steps" / step / "instruction.md").write_text(f"Do {step}.\n")
    (task / "task.toml").write_text(STEPPED)
    return task


# --- asking for it -------------------------------------------------------------------------------------------


def test_a_policy_is_written_in_short() -> None:
    assert branch_config("group").policy == Group()
    assert branch_config("group:n=4,at=1").policy == Group(n=4, at=1)
    assert branch_config("every_n:every=2").policy == EverySteps(every=2)
    config = branch_config("after_steps:steps=1+3,n=2,aggregate=max,max_depth=2")
    assert config.policy == AfterSteps(steps=(1, 3), n=2)
    assert (config.aggregate, config.max_depth) == ("max", 2)
    assert branch_config("after_steps:steps=0+1+2,n=4+3+2").policy == AfterSteps(steps=(0, 1, 2), n=(4, 3, 2))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.yaml", "policy: {kind: group, n: 3}\nchildren: [{prompt: a}, {prompt: b}, {seed: 3}]\n"),
        ("b.json", '{"policy": {"kind": "group", "n": 3}, '
         '"children": [{"prompt": "a"}, {"prompt": "b"}, {"seed": 3}]}'),
        ("b.toml", '[policy]\nkind = "group"\nn = 3\n[[children]]\nprompt = "a"\n[[children]]\nprompt = "b"\n'
         "[[children]]\nseed = 3\n"),
    ],
)  # fmt: skip
def test_all_of_it_is_written_in_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    config = branch_config(str(tmp_path / name))
    assert config.policy == Group(n=3)
    assert [(child.prompt, child.seed) for child in config.children] == [("a", None), ("b", None), (None, 3)]


def test_a_jobs_file_and_a_rollouts_say_it_as_a_table_in_short_or_by_another_file(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("policy: {kind: group, n: 3}\n")
    for said in ("{policy: {kind: group, n: 3}}", "group:n=3", "b.yaml"):
        file = tmp_path / "config.yaml"
        file.write_text(f"task_path: t\nbranch: {said}\n")
        branch = rollout_config_from_yaml(file).branch
        assert branch is not None and branch.policy == Group(n=3)
    file.write_text("paths: [t]\nbranch: group:n=3\n")
    assert read_job_file(file)["branch"].policy == Group(n=3)


@pytest.mark.parametrize(
    ("said", "key", "message", "remedy"),
    [
        ("{policy: {kind: grup}}", "branch.policy", "no branch policy 'grup'", "did you mean `group`?"),
        ("{policy: group}", "branch.policy", "names no branch policy", "kind: group"),
        ("{policy: {kind: group, m: 2}}", "branch.policy.m", "not a known key", "at, kind, n"),
        ("{policy: {kind: group, n: 1}}", "branch.policy.n", "greater than or equal to 2", ""),
        ("{policy: {kind: after_steps, steps: [1], n: x}}", "branch.policy.n", "valid integer", "change 'x'"),
        ("{policy: {kind: after_steps, steps: [1], n: [4, 0]}}", "branch.policy.n[1]", "or equal to 1", "change 0"),
        ("{policy: {kind: group}, depth: 1}", "branch.depth", "not a known key", "max_depth"),
        ("{}", "branch.policy", "is missing", ""),
        ("grup:n=3", "branch", "no branch policy 'grup'", "did you mean `group`?"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, said: str, key: str, message: str, remedy: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"task_path: t\nbranch: {said}\n")
    with pytest.raises(ConfigError, match=message) as caught:
        rollout_config_from_yaml(file)
    assert (caught.value.file, caught.value.key) == (str(file), key)
    assert remedy in (caught.value.remedy or "")


REFUSED = {
    # What is written wrongly.
    "grup:n=2": ("--branch", "no branch policy 'grup'"),
    "group:m=2": ("--branch", "group has no 'm'"),
    "group:n": ("--branch", "'n' is no KEY=VALUE"),
    "group:n=2,n=3": ("--branch", "'n' is given twice"),
    "group:n=two": ("--branch", "valid integer"),
    "nowhere.yaml": (None, "cannot be read"),
    # What cannot be with this task.
    "after_steps:steps=2": ("branch.policy", "the task has 2 steps"),
    "group:n=65": ("branch.max_children", "of at most 64"),
    "group:horizon=3": ("branch.horizon", "no child has more than 2 steps"),
    # What is nowhere to be found.
    "custom:policy=nowhere_at:all": ("branch.policy.policy", "No module named 'nowhere_at'"),
    "group:aggregate=nowhere_at:all": ("branch.aggregate", "No module named 'nowhere_at'"),
    "none": ("branch.checkpoint", "keeps none"),
    "none:checkpoint=per_turn,horizon=1": ("branch.horizon", "there are none"),
    "group:every=2": ("branch.every", "not counted"),
}


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_submitted(bench: Bench, tmp_path: Path, said: str) -> None:
    ran = bench("submit", stepped(tmp_path), "--sandbox", "local", "--branch", said, "--dry-run", "--json")
    assert ran.status == 2, ran.out
    key, message = REFUSED[said]
    assert ran.json["error"]["key"] == key
    assert message in ran.json["error"]["message"]


SCENE = """---
agents: {roles: {author: {agent: oracle}, critic: {agent: oracle}}}
scenes: [{name: work, turns: [author, {role: LAST, prompt: Once more.}]}]
---
Do as you are told.
"""


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("last", "is_refused"), [("author", False), ("critic", True)])
def test_a_childs_role_is_refused_where_its_turns_have_several(
    bench: Bench, tmp_path: Path, last: str, is_refused: bool
) -> None:
    task = stepped(tmp_path)
    (task / "task.toml").unlink()
    (task / "steps" / "first").rename(task / "of-it")
    shutil.rmtree(task / "steps")
    for name, place in {"tests": "verifier", "solution": "oracle"}.items():
        (task / "of-it" / name).rename(task / place)
    (task / "task.md").write_text(SCENE.replace("LAST", last))
    (tmp_path / "b.yaml").write_text("policy: {kind: group, n: 2}\nchildren: [{}, {role: brave}]\n")
    ran = bench("submit", task, "--sandbox", "local", "--branch", tmp_path / "b.yaml", "--dry-run", "--json")
    if not is_refused:
        assert ran.status == 0, ran.out
        return
    assert (ran.status, ran.json["error"]["key"]) == (2, "scenes")
    assert "scenes of several roles" in ran.json["error"]["message"]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("agent", "child", "key", "message"),
    [
        (["oracle"], "{prompt: Think.}", "prompt", "'oracle' uses no prompt"),
        (["oracle"], "{seed: 3}", "seed", "'oracle' uses no seed"),
        (["claude", "--model", "anthropic/a"], "{model: openai/b}", "model", "openai"),
        (["opencode", "--model", "anthropic/a"], "{model: openai/b}", "model", "another key"),
    ],
)
def test_what_a_childs_agent_cannot_do_is_refused(
    bench: Bench, tmp_path: Path, agent: list[str], child: str, key: str, message: str
) -> None:
    (tmp_path / "b.yaml").write_text(f"policy: {{kind: group, n: 2}}\nchildren: [{{}}, {child}]\n")
    options = ["--sandbox", "docker", "--branch", tmp_path / "b.yaml", "--dry-run", "--json"]
    ran = bench("submit", stepped(tmp_path), "--agent", *agent, *options)
    assert (ran.status, ran.json["error"]["key"]) == (2, f"branch.children[1].{key}")
    assert message in ran.json["error"]["message"]


@pytest.mark.usefixtures("state")
def test_a_sandbox_without_snapshots_and_a_shared_world_are_refused(bench: Bench, tmp_path: Path) -> None:
    task = stepped(tmp_path)
    ran = bench("submit", task, "--sandbox", "noop", "--branch", "group", "--dry-run", "--json")
    assert (ran.status, ran.json["error"]["type"]) == (2, "UnsupportedFeatureError")
    assert "takes no snapshots" in ran.json["error"]["message"]
    manifest = tmp_path / "world.toml"
    manifest.write_text('[environment]\nname = "w"\nimage = "debian:bookworm-slim"\nisolation = "persistent"\n')
    world = ["--environment-manifest", manifest]
    ran = bench("submit", task, "--sandbox", "local", "--branch", "group", *world, "--dry-run", "--json")
    assert (ran.status, ran.json["error"]["file"]) == (2, str(manifest))
    assert "each child needs its own" in ran.json["error"]["message"]


@pytest.mark.usefixtures("state")
def test_the_command_line_wins_over_the_file(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("branch: {policy: {kind: group}, every: 2}\n")
    arguments = ["submit", stepped(tmp_path), "--config", tmp_path / "job.yaml", "--sandbox", "local", "--dry-run"]
    assert bench(*arguments).status == 2
    assert bench(*arguments, "--branch", "group:n=2").status == 0


# --- looking at it -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def submitted(shared_state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ran, Path]]:
    """A job whose rollout branched after its first step, as `bench submit` showed it; and its directory."""
    root = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(shared_state))
        for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
            patch.delenv(name, raising=False)
        options = ["--sandbox", "local", "--branch", "after_steps:steps=1,n=2", "--job-name", "forked"]
        arguments = ["submit", str(stepped(root)), *options, "--jobs-dir", str(root / "jobs")]
        ran = CliRunner().invoke(app, arguments, prog_name="bench")
        yield Ran(ran.exit_code, ran.stdout, ran.stderr), root / "jobs" / "forked"


@pytest.mark.local
def test_a_table_says_that_a_reward_is_a_value_and_where_its_tree_is_drawn(submitted: tuple[Ran, Path]) -> None:
    ran, job = submitted
    assert ran.status == 0, ran.out + ran.err
    (rollout,) = job.glob("stepped__*")
    assert " V 1.0 ±0.0 n=2 " in ran.out
    assert f"tree     bench tree show {rollout}\n" in ran.out


@pytest.mark.local
def test_a_tree_is_shown_by_its_directory_and_by_its_name(submitted: tuple[Ran, Path], bench: Bench) -> None:
    job = submitted[1]
    (rollout,) = job.glob("stepped__*")
    ways = [[rollout], [rollout / "children" / "n1.0"], ["forked/stepped", "--jobs-dir", job.parent]]
    shown = [bench("tree", "show", *way) for way in ways]
    assert [ran.status for ran in shown] == [0, 0, 0], shown[0].err
    assert len({ran.out for ran in shown}) == 1
    assert "8 nodes" not in shown[0].out and "4 nodes, 2 leaves" in shown[0].out
    assert "V=1.0±0.0 n=2" in shown[0].out
    assert "n1.0/n2" in shown[0].out and "n1.1/n2" in shown[0].out


@pytest.mark.local
def test_children_are_folded_where_that_is_asked_for_and_never_in_a_pipe(
    submitted: tuple[Ran, Path], bench: Bench
) -> None:
    (rollout,) = submitted[1].glob("stepped__*")
    folded = bench("tree", "show", rollout, "--depth", "0").out
    assert "└─ … 2 children  return=1.0 … 1.0, mean 1.0\n" in folded and "n1.0/n2" not in folded
    for whole in (["--all"], ["--limit", "1"], ["--depth", "1"]):
        assert bench("tree", "show", rollout, *whole).out == bench("tree", "show", rollout).out
    assert bench("tree", "show", rollout, "--limit", "0").status == 2


@pytest.mark.local
def test_a_tree_is_data_too(submitted: tuple[Ran, Path], bench: Bench) -> None:
    (rollout,) = submitted[1].glob("stepped__*")
    tree = bench("tree", "show", rollout, "--json").json
    assert (tree["root"], tree["directory"]) == ("n0", str(rollout))
    assert {node["id"]: node["events"] for node in tree["nodes"]}["n1.1/n2"] == [0, 2]
    rows = bench("results", submitted[1], "--json").json["rollouts"]
    assert [(row["reward_kind"], row["value"]["n"], row["value"]["stderr"]) for row in rows] == [("value", 2, 0.0)]


@pytest.mark.local
def test_the_path_to_a_leaf_is_shown_through_all_files(submitted: tuple[Ran, Path], bench: Bench) -> None:
    (rollout,) = submitted[1].glob("stepped__*")
    ran = bench("tree", "path", rollout, "n1.1/n2")
    assert ran.status == 0, ran.err
    assert ran.out.index("Do first.") < ran.out.index("Do second.")
    lines = [json.loads(line) for line in bench("tree", "path", rollout, "n1.1/n2", "--json").out.splitlines()]
    assert [(line["seq"], line["node"]) for line in lines] == [(0, "n1"), (1, "n1"), (2, "n1.1/n2"), (3, "n1.1/n2")]
    ran = bench("tree", "path", rollout, "n9")
    assert ran.status == 2
    assert "n1.0/n2, n1.1/n2" in ran.err


@pytest.mark.local
def test_children_that_failed_are_named_and_one_that_runs_is_shown(
    submitted: tuple[Ran, Path], bench: Bench, tmp_path: Path
) -> None:
    job = tmp_path / "forked"
    shutil.copytree(submitted[1], job)
    (rollout,) = job.glob("stepped__*")
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


@pytest.mark.local
def test_what_has_no_tree_says_what_to_do(submitted: tuple[Ran, Path], bench: Bench, tmp_path: Path) -> None:
    (rollout,) = submitted[1].glob("stepped__*")
    ran = bench("tree", "show", submitted[1])
    assert ran.status == 2
    assert rollout.name in ran.err
    copy = tmp_path / rollout.name
    shutil.copytree(rollout, copy)
    (copy / "tree.json").unlink()
    ran = bench("tree", "show", copy)
    assert ran.status == 2
    assert "has no tree yet" in ran.err


@pytest.mark.usefixtures("state")
def test_a_task_of_one_step_branches_at_its_beginning(bench: Bench, tmp_path: Path) -> None:
    task = init_task(tmp_path, "greet")
    assert bench("submit", task, "--sandbox", "local", "--branch", "group:n=4", "--dry-run").status == 0
    ran = bench("submit", task, "--sandbox", "local", "--branch", "after_steps:steps=1", "--dry-run")
    assert ran.status == 2
    assert "greet · oracle" in ran.err
