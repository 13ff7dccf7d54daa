"""Rollouts that branch, on the command line: how they are asked for, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.command_line import Bench

from benchflow.config_file import parse_branch, read_job_file, rollout_config_from_yaml
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


def test_a_policy_is_written_in_short() -> None:
    assert parse_branch("group").policy == Group()
    assert parse_branch("group:n=4,at=1").policy == Group(n=4, at=1)
    assert parse_branch("every_n:every=2").policy == EverySteps(every=2)
    config = parse_branch("after_steps:steps=1+3,n=2,aggregate=max,max_depth=2")
    assert config.policy == AfterSteps(steps=(1, 3), n=2)
    assert (config.aggregate, config.max_depth) == ("max", 2)
    assert parse_branch("after_steps:steps=0+1+2,n=4+3+2").policy == AfterSteps(steps=(0, 1, 2), n=(4, 3, 2))


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
    config = parse_branch(str(tmp_path / name))
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
        ("{policy: {kind: grup}}", "branch.policy.kind", "or 'none', not 'grup'", "did you mean `group`?"),
        ("{policy: group}", "branch.policy", "must be a table, not 'group'", "`branch.policy` and its keys"),
        ("{policy: {n: 3}}", "branch.policy.kind", "is missing", "add `kind`"),
        ("{policy: {kind: group, m: 2}}", "branch.policy.m", "not a known key", "at, kind, n"),
        ("{policy: {kind: group, n: 1}}", "branch.policy.n", "greater than or equal to 2", ""),
        ("{policy: {kind: after_steps, steps: [1], n: x}}", "branch.policy.n", "must be a whole number", "change 'x'"),
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
    "group:n=two": ("--branch", "whole number"),
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


@pytest.mark.usefixtures("state")
def test_a_task_of_one_step_branches_at_its_beginning(bench: Bench, tmp_path: Path) -> None:
    task = init_task(tmp_path, "greet")
    assert bench("submit", task, "--sandbox", "local", "--branch", "group:n=4", "--dry-run").status == 0
    ran = bench("submit", task, "--sandbox", "local", "--branch", "after_steps:steps=1", "--dry-run")
    assert ran.status == 2
    assert "greet · oracle" in ran.err
