"""Agents that are Python code, through the real stack: branching by their questions and with their memory, their model.

Those of the docs are among them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import Seen, assert_nothing_is_left, finished, histories, submit_tasks, write_task
from support.doc_blocks import write_blocks
from support.made_once import made_once
from support.model_world import KEY, MODEL, says

from benchflow.contracts.job import AgentSpec
from benchflow.paths import RolloutPaths
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.local

TOKEN = f"t0ken-of-this-module-{secrets.token_hex(8)}"

AGENTS = '''
"""Agents of a user's own."""

from pathlib import Path

from benchflow import AgentTurn


async def asks(turn: AgentTurn) -> None:
    """Ask, and do what was answered."""
    await turn.write_file("before", "x")
    color = await turn.ask_user("which color?", ["red", "blue"])
    await turn.say(f"{color} it is")
    if color == "red":
        await turn.write_file("answer", "42\\n")


async def recalls(turn: AgentTurn) -> None:
    """Note a word, then write down what was noted, and a lot."""

    async def draw() -> int:
        with Path(turn.env["LOTS"]).open("a+") as lots:
            lots.write(".")
            return lots.tell() % 2

    if "Note" in turn.prompt:
        turn.memory |= {"word": "plum", "token": turn.env["TOKEN"]}
        await turn.exec(["printf", "%s", turn.env["TOKEN"]])
        return
    lot = await turn.once("lot", draw)
    await turn.write_file("answer", f"{turn.memory.get('word')} {lot}\\n")
    await turn.say(f"token {turn.memory.get('token')}")


async def thinks(turn: AgentTurn) -> None:
    """Ask a model, and do as it says."""
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
    answer = await turn.complete([{"role": "user", "content": turn.prompt}], tools=[tool])
    await turn.say(answer["choices"][0]["message"]["content"])
    await turn.exec("echo 42 >answer")


async def fails(turn: AgentTurn) -> None:
    """Do half of it."""
    await turn.exec("echo 42 >answer")
    raise LookupError("no more")
'''
BROKEN = """
from benchflow.contracts.agent import RolloutAgent


class Broken(RolloutAgent):
    async def open(self, index):
        raise KeyError("what is not there")

    async def session(self, held):
        raise NotImplementedError
"""
DOCUMENT = """---
environment:
  network_mode: no-network
agents:
  roles:
    solver: {agent: mine.recalls}
scenes:
  - name: work
    turns:
      - {role: solver, prompt: "Note the word plum."}
      - {role: solver, prompt: "Write down what you noted."}
---
Do as you are told.
"""
TALK_TEST = "grep -q '^plum [01]$' /app/answer && cut -d' ' -f2 /app/answer > /logs/verifier/reward.txt\n"
AFTER_ONE = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "min_session_rung": "load"}


def write_talk(root: Path) -> Path:
    """A task in which the agent is told two things, one after the other."""
    task = write_task(root, "talk", test=TALK_TEST)
    (task / "task.toml").unlink()
    (task / "instruction.md").unlink()
    (task / "task.md").write_text(DOCUMENT)
    return task


@made_once()
async def rollouts(root: Path) -> dict[str, Any]:
    """Run one job of each kind at once. Returns its rollouts by the names of their tasks, and histories."""
    (root / "mine.py").write_text(AGENTS)
    (root / "broken.py").write_text(BROKEN)
    write_blocks("custom-agent.md", root)

    def reply(request: ModelRequest) -> dict[str, Any]:
        return says("It is 42.")

    async with ScriptedModel(reply) as model:
        endpoint = {"model": f"openai/{MODEL}", "base_url": model.openai_base_url, "env": {"OPENAI_API_KEY": KEY}}
        recalling = AgentSpec(name="mine:recalls", env={"LOTS": str(root / "lots"), "TOKEN": TOKEN})
        wanted: dict[str, dict[str, Any]] = {
            "asks": {
                "agents": [AgentSpec(name="mine:asks")],
                "permissions": "ask",
                "branch": {"policy": {"kind": "ask_user"}},
            },
            "talk": {"agents": [recalling], "branch": AFTER_ONE},
            "group": {"agents": [AgentSpec(name="mine:asks")], "mode": {"kind": "grpo", "n": 2}},
            "thinks": {"agents": [AgentSpec(name="mine:thinks", **endpoint)]},
            "fails": {"agents": [AgentSpec(name="mine:fails")]},
            "broken": {"agents": [AgentSpec(name="broken:Broken")], "retry": {"max_retries": 0}},
            "docs-function": {"agents": [AgentSpec(name="my_agent:act")]},
            "docs-class": {"agents": [AgentSpec(name="command_agent:CommandAgent")]},
        }
        with contextlib.chdir(root):
            jobs = {}
            for name, options in wanted.items():
                task = write_talk(root) if name == "talk" else write_task(root, name)
                if name == "docs-class":
                    (task / "instruction.md").write_text("echo 42 >answer; echo done")
                jobs[name] = await submit_tasks([task], root / "jobs", job_name=name, **options)
        seen: dict[str, Any] = {name: (await finished(job))[name] for name, job in jobs.items()}
    return seen | {"histories": "".join((await histories(jobs["talk"])).values())}


def nodes_of(seen: Seen) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for node in json.loads(seen.paths.tree.read_text())["nodes"]}


def test_each_option_of_a_question_becomes_a_child(rollouts: dict[str, Any]) -> None:
    seen = rollouts["asks"]
    assert seen.result.error is None
    assert (seen.result.reward, seen.result.reward_kind) == (0.5, "value")
    nodes = nodes_of(seen)
    assert set(nodes) == {"n0", "n1-asked", "n1-asked.0/n1", "n1-asked.1/n1"}
    for number, (color, reward) in enumerate((("red", 1.0), ("blue", 0.0))):
        assert nodes[f"n1-asked.{number}/n1"]["returns"] == reward
        events = read_journal(seen.paths.child(f"n1-asked.{number}").trajectory)
        assert [event["text"] for event in events if event["type"] == "agent_message"] == [f"{color} it is"]
        assert [event["seq"] for event in events] == [*range(len(events))]


def test_children_have_its_memory_and_draw_for_themselves(rollouts: dict[str, Any]) -> None:
    seen = rollouts["talk"]
    assert seen.result.error is None
    assert (seen.result.reward, seen.result.reward_kind) == (0.5, "value")
    nodes = nodes_of(seen)
    children = ("n1.0/n2", "n1.1/n2")
    assert sorted(nodes[name]["returns"] for name in children) == [0.0, 1.0]
    assert [nodes[name]["rung"] for name in children] == ["load", "load"]


def test_no_secret_leaves_with_its_memory_or_its_steps(rollouts: dict[str, Any]) -> None:
    seen = rollouts["talk"]
    assert TOKEN not in rollouts["histories"]
    files = [file for file in seen.paths.root.rglob("*") if file.is_file()]
    assert [file for file in files if TOKEN.encode() in file.read_bytes()] == []
    for number in range(2):
        events = read_journal(seen.paths.child(f"n1.{number}").trajectory)
        (text,) = [event["text"] for event in events if event["type"] == "agent_message"]
        assert text.startswith("token [")


def test_its_steps_are_with_the_results(rollouts: dict[str, Any]) -> None:
    steps = [json.loads(line) for line in read_steps(rollouts["talk"].paths)]
    assert [(step["turn"], step["kind"]) for step in steps] == [(0, "exec")]
    assert steps[0]["result"]["return_code"] == 0


def read_steps(paths: RolloutPaths) -> list[str]:
    (file,) = paths.sessions.glob("*/steps.jsonl")
    return file.read_text().splitlines()


def test_a_group_begins_with_its_first_turn(rollouts: dict[str, Any]) -> None:
    seen = rollouts["group"]
    assert seen.result.error is None
    assert [node["returns"] for node in nodes_of(seen).values() if node["id"].endswith("/n1")] == [1.0, 1.0]


def test_its_model_is_called_through_the_gateway(rollouts: dict[str, Any]) -> None:
    seen = rollouts["thinks"]
    assert (seen.result.error, seen.result.reward, seen.texts) == (None, 1.0, ["It is 42."])
    turn = seen.result.steps[0].turn
    assert (turn.turn_end, turn.usage.input_tokens > 0) == ("observed", True)
    requests = [line for line in read_journal(seen.paths.model_calls) if line["type"] == "request"]
    assert [request["node"] for request in requests] == ["n1"]
    assert KEY not in seen.paths.model_calls.read_text()


def test_what_it_raises_is_the_rollouts_error_and_what_it_did_is_scored(rollouts: dict[str, Any]) -> None:
    seen = rollouts["fails"]
    assert (seen.error.type, seen.error.message) == ("AgentExitError", "the agent raised LookupError: no more")
    assert "mine.py" in str(seen.error.log_tail)
    assert seen.result.rewards == {"reward": 1.0}


def test_what_a_class_raises_is_the_agents(rollouts: dict[str, Any]) -> None:
    error = rollouts["broken"].error
    assert (error.type, error.category, error.phase) == ("AgentExitError", "agent_exit", "connect")
    assert "raised KeyError: 'what is not there'" in error.message


def test_the_agents_of_the_docs_do_what_they_say(rollouts: dict[str, Any]) -> None:
    function, command = rollouts["docs-function"], rollouts["docs-class"]
    assert (function.result.error, command.result.error) == (None, None)
    assert command.result.reward == 1.0
    (update,) = command.of("tool_call_update")
    assert (update["status"], update["raw_output"]["stdout"]) == ("completed", "done\n")
    assert [line["type"] for line in function.lines] == [
        *("user_message", "tool_call", "tool_call_update", "agent_message"),
        *("elicitation_request", "elicitation_answer", "tool_call", "tool_call_update"),
    ]


def test_nothing_is_left_of_them(rollouts: dict[str, Any]) -> None:
    assert_nothing_is_left(*(seen for seen in rollouts.values() if isinstance(seen, Seen) and seen.result.sandbox))
