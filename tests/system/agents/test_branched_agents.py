"""Agents whose world is copied between two turns: each child loads the session, and goes its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import SOLVE, Seen, finished, submit_tasks, write_task
from support.made_once import made_once
from support.model_world import calls_in, policy, runs, says, write_model_task

from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.local

DOCUMENT = """---
environment:
  network_mode: no-network
agents:
  roles:
    solver: {agent: policy}
scenes:
  - name: work
    turns:
      - {role: solver, prompt: "Note the word plum."}
      - {role: solver, prompt: "Write down what you noted."}
---
Do as you are told.
"""
# The lot that a child has drawn is its reward.
TEST = "cat /app/answer; grep -q '^plum [01]$' /app/answer && cut -d' ' -f2 /app/answer > /logs/verifier/reward.txt\n"


def write_talk(root: Path, name: str) -> Path:
    """A task in which the agent is told two things, one after the other."""
    task = write_model_task(root, name, test=TEST)
    (task / "task.toml").unlink()
    (task / "instruction.md").unlink()
    (task / "task.md").write_text(DOCUMENT)
    return task


class Drawing:
    """Knows the word from the session alone, and gives every other child a 1."""

    def __init__(self) -> None:
        self.lots = 0

    def __call__(self, request: ModelRequest) -> dict[str, Any] | str:
        users = [message.text for message in request.messages if message.role == "user"]
        if "Write down" not in users[-1]:
            return says("I have noted the word plum.")
        if request.messages[-1].role != "user":
            return says("It is written down.")
        if not any("I have noted the word plum." in message.text for message in request.messages):
            return says("I know of no word.")
        self.lots += 1
        return runs(f"echo plum {self.lots % 2} > /app/answer")


OPTIONS = [["red", "allow_once"], ["blue", "allow_once"], ["neither", "reject_once"]]


@made_once()
async def trees(root: Path) -> dict[str, Seen]:
    """Grow three trees at once."""
    after_one = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "min_session_rung": "load"}
    picks = {"red": [SOLVE], "blue": [{"say": "blue it is"}]}
    turn = [{"write": "before", "content": "x"}, {"ask": "which color?", "options": OPTIONS, "then": picks}]
    # Each has a model of its own, which counts.
    async with ScriptedModel(Drawing()) as talking, ScriptedModel(Drawing()) as going_on:
        jobs = [
            await submit_tasks(tasks, root / "jobs", sandbox="local", **options)
            for tasks, options in (
                (
                    [write_talk(root, "talk")],
                    {
                        "job_name": "talk",
                        "agents": [policy(talking)],
                        "branch": after_one | {"children": [{"role": "shy"}, {}]},
                    },
                ),
                (
                    [write_talk(root, "trunk")],
                    {
                        "job_name": "trunk",
                        "agents": [policy(going_on)],
                        "mode": {"kind": "value", "depths": [1], "n": 2},
                    },
                ),
                (
                    [write_task(root, "asks", turn)],
                    {"job_name": "asks", "permissions": "ask", "branch": {"policy": {"kind": "ask_user"}}},
                ),
            )
        ]
        return {name: seen for job in jobs for name, seen in (await finished(job)).items()}


def test_children_of_a_session_go_on_with_it_each_for_itself(trees: dict[str, Seen]) -> None:
    seen = trees["talk"]
    assert seen.result.error is None
    assert (seen.result.reward, seen.result.reward_kind) == (0.5, "value")
    tree = json.loads(seen.paths.tree.read_text())
    nodes = {node["id"]: node for node in tree["nodes"]}
    assert set(nodes) == {"n0", "n1", "n1.0/n2", "n1.1/n2"}
    assert sorted(nodes[name]["returns"] for name in ("n1.0/n2", "n1.1/n2")) == [0.0, 1.0]
    for number in range(2):
        paths = seen.paths.child(f"n1.{number}")
        result = json.loads(paths.result.read_text())
        (_, step) = result["steps"]
        assert step["turn"]["prefix"] == "equal"
        events = read_journal(paths.trajectory)
        where = (f"n1.{number}/n2", ("shy", "solver")[number])
        assert {(event["node"], event["role"]) for event in events} == {where}
        assert {call.where for call in calls_in(paths.model_calls) if call.where[0] != "n1"} == {(*where, 1)}
        assert nodes[where[0]]["role"] == where[1]
        assert [event["text"] for event in events if event["type"] == "user_message"] == ["Write down what you noted."]


def test_a_trunk_goes_on_in_its_own_session_when_its_children_have_ended(trees: dict[str, Seen]) -> None:
    seen = trees["trunk"]
    assert seen.result.error is None
    # Its lot was the third.
    assert (seen.result.reward, seen.result.reward_kind, len(seen.result.sessions)) == (1.0, "measured", 1)
    nodes = {node["id"]: node for node in json.loads(seen.paths.tree.read_text())["nodes"]}
    assert (nodes["n1"]["value"], nodes["n1"]["n"]) == (0.5, 2)
    assert [nodes[f"n1.{number}/n2"]["rung"] for number in range(2)] == ["load", "load"]
    assert nodes["n2"]["returns"] == 1.0


def test_each_child_gives_another_answer_to_what_the_agent_asks(trees: dict[str, Seen]) -> None:
    seen = trees["asks"]
    assert seen.result.error is None
    assert (seen.result.reward, seen.result.reward_kind) == (pytest.approx(1 / 3), "value")
    nodes = {node["id"]: node for node in json.loads(seen.paths.tree.read_text())["nodes"]}
    assert set(nodes) == {"n0", "n1-asked", *(f"n1-asked.{number}/n1" for number in range(3))}
    assert [nodes[f"n1-asked.{number}/n1"]["returns"] for number in range(3)] == [1.0, 0.0, 0.0]
    assert nodes["n1-asked"]["value"] == pytest.approx(1 / 3)
