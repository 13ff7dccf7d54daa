"""Real agents in trees: children go on with their parent's session, or with its question, each in a world of its own.

The agents, their sessions, the sandboxes and the gateway are what a user gets; scripted is the model alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import BASE_IMAGE, Seen, run_tasks
from support.model_world import calls_in, main_calls
from support.real_agents import Asked

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

pytestmark = [pytest.mark.local, pytest.mark.agents, pytest.mark.long]

Json = dict[str, Any]

CLAUDE = Asked("claude-agent-acp", "anthropic-messages", "anthropic", "ANTHROPIC_API_KEY", says="")
CODEX = Asked("codex-acp", "openai-responses", "openai", "OPENAI_API_KEY", says="")
OPENCODE = Asked("opencode", "openai-chat", "openai", "OPENAI_API_KEY", says="")
GEMINI = Asked("gemini", "gemini", "google", "GEMINI_API_KEY", says="")

each = pytest.mark.parametrize(
    "asked",
    [CLAUDE, CODEX, OPENCODE],
    ids=lambda asked: asked.agent,
)

WORDS = ("quince", "medlar")

TALK = """---
environment:
  network_mode: no-network
agents:
  roles:
    solver: {{agent: {agent}}}
scenes:
  - name: work
    turns:
      - {{role: solver, prompt: "{first}"}}
      - {{role: solver, prompt: "{second}"}}
---
Note what you are told.
"""
# A child is as good as it knows what its parent was told, and did, and what it was told itself.
TEST = "cp /app/notes /logs/artifacts/; grep -qx pear /app/notes && [ $(wc -l </app/notes) = 2 ]\n"


def write_task(
    root: Path,
    agent: str,
    *,
    prompts: tuple[str, str] = ("Please note pear", "Please note nothing"),
    files: dict[str, str] | None = None,
    test: str = TEST,
) -> Path:
    """prompts: of its two turns. files: of the workspace."""
    task = root / f"talk-{agent}"
    for directory in ("environment", "tests"):
        (task / directory).mkdir(parents=True)
    lines = [f"FROM {BASE_IMAGE}", "WORKDIR /app"]
    for name, content in (files or {}).items():
        (task / "environment" / name).write_text(content)
        lines.append(f"COPY {name} /app/")
    (task / "environment" / "Dockerfile").write_text("\n".join(lines) + "\n")
    (task / "task.md").write_text(TALK.format(agent=agent, first=prompts[0], second=prompts[1]))
    script = task / "tests" / "test.sh"
    script.write_text(f"#!/bin/sh\n({test}); echo $((1 - ($? != 0))) > /logs/verifier/reward.txt\n")
    script.chmod(0o755)
    return task


def note(request: ModelRequest) -> Json | str:
    """Note the last word by a command, and say so; answer anything else by `You said it.`."""
    said = [message.text for message in request.messages if message.role == "user" and "lease " in message.text]
    word = said[-1].rpartition("note ")[2].split()[0] if said and "note " in said[-1] else ""
    if request.tool_results:
        return f"{word} is noted."
    if not word:
        return "You said it."
    return {"text": f"I note {word}.", "tools": [{"tool": "shell", "arguments": {"command": f"echo {word} >> notes"}}]}


def run(asked: Asked, task: Path, jobs: Path, name: str, branch: Json, script: Any = note, **options: Any) -> Seen:
    with ScriptedModel(script) as model:
        given: Json = {"sandbox": "local", "sandbox_setup_timeout": 300, "agents": [asked.spec(model)]}
        return run_tasks([task], jobs, job_name=name, branch=branch, **(given | options))[task.name]


def child(seen: Seen, chain: str) -> Seen:
    return Seen(RolloutResult.model_validate_json(seen.paths.child(chain).result.read_text()))


@each
def test_children_go_on_with_a_real_agents_session_each_for_itself(
    module_jobs: Path, tmp_path: Path, asked: Asked
) -> None:
    prompts = [{"prompt": f"Please note {word}"} for word in WORDS]
    branch: Json = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "children": prompts}
    task = write_task(tmp_path, asked.agent)
    seen = run(asked, task, module_jobs, f"tree-{asked.agent}", branch | {"min_session_rung": "load"})
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    for number, word in enumerate(WORDS):
        one = child(seen, f"n1.{number}")
        assert one.result.session_rung == "load"
        # As the gateway has seen it, when the first call came.
        assert one.result.steps[-1].turn.prefix == "equal"
        assert one.made("notes") == f"pear\n{word}\n"
        calls = main_calls(calls_in(one.paths.model_calls))
        assert {call.request["source"] for call in calls} == {"live"}
        told = json.dumps([call.request["request"] for call in calls])
        assert {other for other in WORDS if f"note {other}" in told} == {word}


def test_a_session_that_is_another_one_lowers_the_rung_that_is_recorded(module_jobs: Path, tmp_path: Path) -> None:
    """The agent's own file of its session is changed by what it is told to run: so it loads what was never said."""
    # In the last command of the turn, and after it: its answer is written to the file when the command is over.
    change = "sed -i 's/Please note pear/Please note plum/' /home/agent/.claude/projects/*/*.jsonl; echo pear >> notes"

    def script(request: ModelRequest) -> Json | str:
        said = note(request)
        if isinstance(said, dict) and "pear" in said["text"]:
            return {"text": "I note pear.", "tools": [{"tool": "shell", "arguments": {"command": change}}]}
        return said

    branch: Json = {"policy": {"kind": "after_steps", "steps": [1], "n": 1}}
    seen = run(CLAUDE, write_task(tmp_path, CLAUDE.agent), module_jobs, "changed", branch, script)
    assert seen.result.error is None
    one = child(seen, "n1.0")
    assert one.result.steps[-1].turn.prefix == "different"
    assert one.result.session_rung == "fresh"
    (line,) = one.of("other_prefix")
    assert "begins otherwise" in line["message"]


ASKED = "cp /app/notes /logs/artifacts/; [ -e /app/notes ]"
"""A child is as good as what it was allowed to do."""


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        pytest.param(CLAUDE, {}, id="claude-agent-acp"),
        pytest.param(
            OPENCODE,
            # It asks for nothing unless it is told to.
            {"opencode.json": json.dumps({"permission": {"bash": "ask"}})},
            id="opencode",
        ),
    ],
)
def test_children_are_driven_to_a_real_agents_question_and_each_gives_another_answer(
    module_jobs: Path, tmp_path: Path, asked: Asked, files: dict[str, str]
) -> None:
    prompts = ("Please wait", "Please note pear")
    task = write_task(tmp_path, asked.agent, prompts=prompts, files=files, test=ASKED)
    branch: Json = {"policy": {"kind": "ask_user"}, "min_session_rung": "replay"}
    seen = run(asked, task, module_jobs, f"asks-{asked.agent}", branch, permissions="ask")
    assert seen.result.error is None
    (question,) = [line["params"] for line in seen.of("permission_request")]
    kinds = [option["kind"] for option in question["options"]]
    assert {"allow_once", "reject_once"} <= set(kinds)
    for number, kind in enumerate(kinds):
        one = child(seen, f"n2-asked.{number}")
        assert (one.result.session_rung, one.result.reward) == ("replay", float(kind.startswith("allow")))
        turn = one.result.steps[-1].turn
        assert (turn.prefix, turn.replay and turn.replay.divergence) == ("equal", None)
        again = one.of("permission_request")[0]["params"]
        assert (again["toolCall"]["title"], again["options"]) == (question["toolCall"]["title"], question["options"])
        # The model was asked by the parent what led to the question, and by the child what came of its answer.
        sources = [call.request["source"] for call in main_calls(calls_in(one.paths.model_calls))]
        # OpenCode ends its turn when it is refused.
        after = {"live"} if kind.startswith("allow") or asked is CLAUDE else set()
        assert (sources[0], set(sources[1:])) == ("replay", after)


def test_children_choose_each_another_option_of_a_real_agents_question_tool(module_jobs: Path, tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Json | str:
        if request.tool_results:
            return f"It is to be {'blue' if 'blue' in request.tool_results[0].text else 'red'}."
        if "note " not in request.user_text:
            return "You said it."
        options = [{"label": "red", "description": "as blood"}, {"label": "blue", "description": "as the sea"}]
        asked = {"question": "Which color?", "header": "Color", "options": options}
        return {"text": "I ask.", "tools": [{"tool": "ask_user", "arguments": asked}]}

    task = write_task(tmp_path, CLAUDE.agent, prompts=("Please wait", "Please note a color"), test="true")
    seen = run(CLAUDE, task, module_jobs, "tool", {"policy": {"kind": "ask_user"}}, script, permissions="ask")
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    assert len(seen.of("elicitation_request")) == 1
    for number, color in enumerate(("red", "blue")):
        one = child(seen, f"n2-asked.{number}")
        assert one.result.session_rung == "replay"
        assert f"It is to be {color}." in "".join(one.texts)


def test_an_agent_that_asks_for_nothing_does_not_branch_where_it_would_ask(module_jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path, CODEX.agent, prompts=("Please wait", "Please note pear"), test=ASKED)
    branch: Json = {"policy": {"kind": "ask_user"}}
    seen = run(CODEX, task, module_jobs, "asks-nothing", branch, permissions="ask")
    assert (seen.result.error, seen.result.reward, seen.result.reward_kind) == (None, 1.0, "measured")
    assert seen.of("permission_request") == []
    assert not (seen.paths.root / "children").exists()


def test_a_real_agent_whose_sessions_do_not_survive_being_loaded_is_driven_to_where_it_was(
    module_jobs: Path, tmp_path: Path
) -> None:
    prompts = [{"prompt": f"Please note {word}"} for word in WORDS]
    branch: Json = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "children": prompts}
    task = write_task(tmp_path, GEMINI.agent)
    seen = run(GEMINI, task, module_jobs, "tree-gemini", branch | {"min_session_rung": "replay"})
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    for number, word in enumerate(WORDS):
        one = child(seen, f"n1.{number}")
        assert (one.result.session_rung, one.result.steps[-1].turn.prefix) == ("replay", "equal")
        assert one.made("notes") == f"pear\n{word}\n"
        assert '"method": "session/load"' not in one.journal("in.jsonl")
