"""Sessions that do not load in a copy of their world: a new one is driven to where they were, from where they began."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest
from support.agent_world import SOLVE, Seen, declare, finished, submit_tasks, write_task
from support.made_once import made_once
from support.model_world import Json, calls_in, main_calls, policy, runs, says, write_model_task

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.local

TALK = """---
environment:
  network_mode: no-network
agents:
  roles:
    solver: {{agent: {agent}}}
scenes:
  - name: work
    turns:
      - {{role: solver, prompt: "Note plum."}}
      - {{role: solver, prompt: "Note pear."}}
      - {{role: solver, prompt: "Report."}}
---
Do as you are told.
"""
# What was done in the parent must have been done once.
TEST = "[ \"$(tr '\\n' ' ' </app/notes)\" = 'plum pear ' ] && cat /app/answer > /logs/verifier/reward.txt\n"


def branch(n: int = 1, rung: str = "replay") -> Json:
    return {"policy": {"kind": "after_steps", "steps": [2], "n": n}, "min_session_rung": rung}


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy agent as one that cannot load its sessions, and demo agents that say that they can."""
    directory = tmp_path_factory.mktemp("agents")
    known = (resources.files("benchflow.planes.agent") / "registry" / "policy.toml").read_text()
    (directory / "policy.toml").write_text(known.replace('rung = "load"', 'rung = "replay"'))
    # It finds its home only the first time that it is started in a world.
    once = "cd; [ -e started ] && export HOME=/tmp; touch started; cd /app; exec"
    launch = ["sh", "-c", f"{once} python3 /opt/demo_agent.py /opt/script.json"]
    declare(directory, "forgets", launch=launch, session={"rung": "load"})
    declare(directory, "loads-nothing", session={"rung": "load"})
    return directory


def write_talk(task: Path, agent: str) -> Path:
    """The task with the talk in place of its instruction."""
    for name in ("task.toml", "instruction.md"):
        (task / name).unlink()
    (task / "task.md").write_text(TALK.format(agent=agent))
    return task


class Noting:
    """Notes what it is told, and reports what it knows of: 1 if that is all, each asked for once.

    also: a command that is run with each note.
    """

    def __init__(self, also: str = "true") -> None:
        self.also = also
        self.asked: list[str] = []

    def __call__(self, request: ModelRequest) -> Json:
        last = [message.text for message in request.messages if message.role == "user" and message.text][-1]
        if request.tool_results:
            return says(f"{last} That is done.")
        self.asked.append(last)
        noted = re.search(r"Note (\w+)\.", last)
        if noted:
            return runs(f"echo {noted[1]} >> notes; {self.also}")
        knows = any("Note plum. That is done." in message.text for message in request.messages)
        return runs(f"echo {int(knows)} > answer")


@dataclass(frozen=True)
class Trees:
    """Trees by their task, and what the models of some were asked for."""

    seen: dict[str, Seen]
    asked: dict[str, list[str]]


@made_once()
async def trees(root: Path) -> Trees:
    """The trees of every run, grown at once."""
    return await grow(root, "talk", "asks")


@made_once()
async def more_trees(root: Path) -> Trees:
    """Those of a long run: sessions that end up elsewhere when driven again, and one that does not load."""
    return await grow(root, "random", "refused", "forgets")


async def grow(root: Path, *names: str) -> Trees:
    """Grow these trees at once."""
    scripts = {
        "talk": Noting(),
        "random": Noting(also="cat /proc/sys/kernel/random/uuid > id"),
        "refused": Noting(also="head -c 6 /dev/urandom | od -An -tu1"),
    }
    branches = {"talk": branch(2), "random": branch(2, "fresh"), "refused": branch()}
    tests = {"random": f"cp /app/id /logs/artifacts; {TEST}"}
    notes = [[{"run": "echo plum >> notes"}], [{"run": "echo pear >> notes"}]]
    forgets = write_task(root, "forgets", *notes, [{"write": "answer", "content": "1\n"}], test=TEST)
    options = [["red", "allow_once"], ["blue", "reject_once"]]
    asks = {"ask": "which color?", "options": options, "then": {"red": [SOLVE], "blue": [{"say": "blue it is"}]}}
    asking = write_task(
        root,
        "asks",
        notes[0],
        [*notes[1], asks],
        [{"say": "over"}],
        script={"capabilities": {"loadSession": False, "sessionCapabilities": {}}},
        test="[ \"$(tr '\\n' ' ' </app/notes)\" = 'plum pear ' ] && [ -e /app/answer ]; "
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
    )
    async with contextlib.AsyncExitStack() as models:
        given: dict[str, tuple[Path, Json]] = {
            "forgets": (write_talk(forgets, "forgets"), {"agents": ["forgets"], "branch": branch()}),
            "asks": (
                write_talk(asking, "loads-nothing"),
                {
                    "agents": ["loads-nothing"],
                    "permissions": "ask",
                    "branch": {"policy": {"kind": "ask_user"}, "min_session_rung": "replay"},
                },
            ),
        }
        asked = {name: script for name, script in scripts.items() if name in names}
        for name, script in asked.items():
            model = await models.enter_async_context(ScriptedModel(script))
            task = write_model_task(root, name, test=tests.get(name, TEST))
            given[name] = write_talk(task, "policy"), {"agents": [policy(model)], "branch": branches[name]}
        jobs = [
            await submit_tasks([task], root / "jobs", job_name=name, **options)
            for name, (task, options) in given.items()
            if name in names
        ]
        seen = {name: one for job in jobs for name, one in (await finished(job)).items()}
    return Trees(seen, {name: sorted(script.asked) for name, script in asked.items()})


def children(seen: Seen, count: int = 1, chain: str = "n2") -> list[Seen]:
    return [Seen(result_at(seen.paths.child(f"{chain}.{number}").result)) for number in range(count)]


def warnings_of(seen: Seen) -> list[str]:
    """All but that of a local sandbox, that it stands for an image."""
    return [text for text in seen.result.warnings if not text.startswith("the host (")]


def result_at(file: Path) -> RolloutResult:
    return RolloutResult.model_validate_json(file.read_text())


def test_a_new_session_is_driven_to_where_the_one_was_and_nothing_is_done_or_asked_twice(trees: Trees) -> None:
    seen = trees.seen["talk"]
    assert seen.result.error is None
    assert (seen.result.reward, seen.result.reward_kind) == (1.0, "value")
    # The model was asked for the notes by the parent alone.
    assert trees.asked["talk"] == ["Note pear.", "Note plum.", "Report.", "Report."]
    for child in children(seen, 2):
        assert (child.result.session_rung, warnings_of(child)) == ("replay", [])
        assert child.result.steps[-1].turn.prefix == "equal"
        assert [line["text"] for line in child.of("user_message")] == ["Report."]
        calls = main_calls(calls_in(child.paths.model_calls))
        assert [call.request["source"] for call in calls] == ["replay"] * 4 + ["live"] * 2
        assert [call.request["node"] for call in calls[:4]] == [None] * 4
        # What others are asked to pay for is not counted again.
        usage = child.result.steps[-1].turn.usage
        assert usage is not None and usage.calls == 2
        again = read_journal(child.paths.trajectory.with_name("session_before.trajectory.jsonl"))
        assert [line["text"] for line in again if line["type"] == "user_message"] == ["Note plum.", "Note pear."]


@pytest.mark.long
def test_a_world_that_is_another_one_the_second_time_is_not_taken_for_the_parents(more_trees: Trees) -> None:
    seen = more_trees.seen["random"]
    assert (seen.result.error, seen.result.reward) == (None, 0.0)
    first, second = children(seen, 2)
    for child in (first, second):
        assert child.result.session_rung == "fresh"
        (warning,) = warnings_of(child)
        assert "the files of the workspace are others" in warning
        assert len(main_calls(calls_in(child.paths.model_calls))) == 6
    # Each has the parent's world after all.
    assert first.made("id") == second.made("id") != ""


@pytest.mark.long
def test_what_cannot_be_driven_to_where_it_was_is_refused_where_less_is_not_enough(more_trees: Trees) -> None:
    seen = more_trees.seen["refused"]
    assert seen.result.reward is None
    assert seen.error.type == "BranchError"
    for child in children(seen):
        assert child.error.type == "SessionNotLoadedError"
        assert "could not be driven to where it was" in child.error.message
        assert child.error.remedy is not None and "fresh" in child.error.remedy
    # What was asked otherwise was asked of nobody.
    assert more_trees.asked["refused"] == ["Note pear.", "Note plum."]


@pytest.mark.long
def test_an_agent_that_was_to_load_its_session_and_does_not_is_driven_there_from_the_very_beginning(
    more_trees: Trees,
) -> None:
    seen = more_trees.seen["forgets"]
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    for child in children(seen):
        assert child.result.session_rung == "replay"
        (warning,) = warnings_of(child)
        assert "could not be loaded: " in warning and "there is no session" in warning


def test_a_child_is_driven_to_a_question_of_the_second_turn_of_an_agent_that_loads_nothing(trees: Trees) -> None:
    seen = trees.seen["asks"]
    assert (seen.result.error, seen.result.reward) == (None, 0.5)
    nodes = {node["id"]: node for node in json.loads(seen.paths.tree.read_text())["nodes"]}
    assert [nodes[f"n2-asked.{number}/n3"]["returns"] for number in range(2)] == [1.0, 0.0]
    for child in children(seen, 2, "n2-asked"):
        assert (child.result.session_rung, warnings_of(child)) == ("replay", [])
