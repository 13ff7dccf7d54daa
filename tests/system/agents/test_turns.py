"""Turns that go well: what an agent did is scored, told, counted and kept, on every sandbox."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.agent_world import (
    DOCKER,
    LOCAL,
    RECORD,
    SOLVE,
    WORKDIR,
    Seen,
    assert_nothing_is_left,
    write_step,
    write_task,
)
from support.system_job import VARIABLES, SystemJobs, SystemTasks

from benchflow.paths import JobPaths

USAGE = {"inputTokens": 900, "outputTokens": 12, "cachedReadTokens": 800, "thoughtTokens": 4}

WHOLE_TURN = [
    {"think": "hmm"},
    {"say": "I will look.", "chunks": 2},
    {"plan": ["look", "write"]},
    SOLVE,
    {"run": "id -un; pwd"},
    {"update": {"sessionUpdate": "mood_update", "mood": "fine"}},
    {"usage": {"used": 1, "size": 2, "cost": {"amount": 0.25, "currency": "USD"}}},
    {"end": "end_turn", "usage": USAGE},
]

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "Ada"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "sure": {"type": "boolean"},
    },
    "required": ["name", "color"],
}
OPEN_FORM = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
OPTIONS = [["never", "reject_always"], ["no", "reject_once"], ["always", "allow_always"], ["yes", "allow_once"]]
ASKS = [
    {"ask": "may I?", "options": OPTIONS, "record": RECORD},
    {"ask": "only this?", "options": [["yes", "allow_always"]], "record": RECORD},
    {"elicit": "who?", "schema": FORM, "record": RECORD},
    {"elicit": "why?", "schema": OPEN_FORM, "record": RECORD},
    SOLVE,
]

STEPS = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("first", "second"))
LOCAL_SERVER = """\
[[environment.mcp_servers]]
name = "desk"
transport = "stdio"
command = "/opt/desk"
args = ["--quiet"]
env = { DESK_TOKEN = "Bearer ${BF_TEST_DESK_TOKEN}", DESK_MODE = "${BF_TEST_DESK_MODE:-slow}" }
"""
TELLS_TOKEN = "grep -ho 'Bearer desk-[^\"]*' $HOME/.demo-agent/sessions/*.jsonl | head -n 1 | tr -d '\\n' | sha256sum"
"""What the session file of the demo agent says of its servers is not for results: only a digest leaves the sandbox."""

SERVED = [
    {"client_write": "answer", "content": "42\nböse\n"},
    {"client_read": "answer", "record": RECORD},
    {"client_read": "lines", "line": 2, "limit": 2, "record": RECORD},
    {"client_run": "id", "args": ["-un"], "record": RECORD},
    {"client_run": "sh", "args": ["-c", "pwd; exit 3"], "cwd": "/tmp", "record": RECORD},
    {"client_run": "sleep 74001", "kill_after": 0.2, "record": RECORD},
    {"client_run": "cat", "args": ["/opt/for-root"], "record": RECORD},
    {"run": "stat -c %U answer", "silent": True, "record": RECORD},
    # The last, because it ends the turn.
    {"client_read": "/opt/for-root"},
]
BUILD = f"RUN echo open > {WORKDIR}/lines && seq 9 >> {WORKDIR}/lines && echo closed > /opt/for-root\n"
BUILD += "RUN chmod 600 /opt/for-root\n"


def system_tasks(root: Path) -> SystemTasks:
    solved = write_task(root, "solved", WHOLE_TURN)
    end = {"end": "end_turn", "usage": USAGE}
    stepped = write_task(
        root,
        "stepped",
        {"when": "Do first", "do": [{"say": "one"}, {"write": "first", "content": "1"}, end]},
        # It finds what the first has made.
        {"when": "Do second", "do": [{"say": "two"}, {"run": "mv first answer"}, end]},
        config=STEPS,
    )
    write_step(stepped, "first", f"[ -e {WORKDIR}/first ] && echo 1 > /logs/verifier/reward.txt\n")
    write_step(stepped, "second")
    uses_tools = write_task(root, "uses-tools", [SOLVE, {"run": TELLS_TOKEN}], environment=LOCAL_SERVER)
    return {
        "turns": [solved, stepped, uses_tools, write_task(root, "asks", ASKS)],
        "denied": [write_task(root, "asks-in-vain", ASKS)],
        "served": [write_task(root, "served", SERVED, build=BUILD)],
        "turns_in_docker": [solved],
    }


@pytest.fixture(params=[LOCAL, DOCKER])
def solved(request: pytest.FixtureRequest, system_jobs: SystemJobs) -> Seen:
    """The rollout of a whole turn."""
    seen: Seen = request.getfixturevalue(f"{request.param}_turns")["solved"]
    return seen


def test_what_the_agent_did_is_scored(solved: Seen) -> None:
    result = solved.result
    assert (result.status, result.rewards, result.error) == ("passed", {"reward": 1.0}, None)
    assert (result.agent, result.model, result.n_prompts) == ("demo", None, 1)
    assert result.steps[0].turn.stop_reason == "end_turn"
    # Without a look at its model calls the end of a turn is taken from the agent's silence.
    assert result.steps[0].turn.turn_end == "inferred"
    assert_nothing_is_left(solved)


def test_the_trajectory_tells_all_that_was_said_and_done(solved: Seen) -> None:
    assert [line["type"] for line in solved.lines] == [
        *("user_message", "agent_thought", "agent_message", "agent_message", "plan"),
        *("tool_call", "tool_call_update", "tool_call", "tool_call_update"),
        *("update", "update"),
    ]
    assert solved.lines[0]["text"].strip() == "Make the answer."
    assert [line["text"] for line in solved.of("agent_thought")] == ["hmm"]
    assert solved.texts == ["I will", " look."]
    wrote, ran = solved.of("tool_call")
    assert wrote["raw_input"] == {"path": f"{WORKDIR}/answer", "content": "42\n"}
    assert (ran["kind"], ran["raw_input"]) == ("execute", {"command": "id -un; pwd"})
    assert solved.of("tool_call_update")[1]["raw_output"] == {"output": f"agent\n{WORKDIR}\n", "exitCode": 0}
    assert {(line["node"], line["role"]) for line in solved.lines} == {("n1", "agent")}
    assert [line["seq"] for line in solved.lines] == list(range(len(solved.lines)))


def test_tokens_money_and_tool_calls_are_counted(solved: Seen) -> None:
    (outcome,) = solved.result.steps
    assert outcome.turn.usage is not None
    assert outcome.turn.usage.model_dump(exclude_none=True) == {
        "estimated_calls": 0,
        "input_tokens": 900,
        "output_tokens": 12,
        "cached_tokens": 800,
        "reasoning_tokens": 4,
        "cost": 0.25,
        "currency": "USD",
    }
    job = JobPaths(solved.paths.root.parent)
    rows = [json.loads(line) for line in job.results.read_text().splitlines()]
    (row,) = [row for row in rows if row["task_name"] == "solved"]
    counted = {"n_input_tokens": 900, "n_output_tokens": 12, "cost_usd": 0.25, "n_tool_calls": 2}
    assert {key: row[key] for key in counted} == counted
    assert {key: getattr(solved.result, key) for key in counted} == counted
    summary = json.loads(job.summary.read_text())
    for name in ("n_input_tokens", "n_output_tokens", "cost_usd"):
        assert summary[name] == sum(row[name] or 0 for row in rows)


def test_the_session_is_in_the_result_and_its_journals_beside_it(solved: Seen) -> None:
    session = solved.session
    assert (session.agent, session.version, session.user, session.cwd) == ("demo-agent", "1.0.0", "agent", WORKDIR)
    assert session.capabilities["loadSession"] is True
    initialize, new, prompt = solved.sent()
    assert (initialize["params"]["clientInfo"]["name"], new["params"]["cwd"]) == ("benchflow", WORKDIR)
    assert prompt["params"]["sessionId"] == session.id
    assert '"mood_update"' in solved.journal("out.jsonl")
    # It was ended before the verifier began; an agent that ends by itself leaves its end.
    assert not (solved.paths.sessions / "0.0" / "exit.json").exists()


# --- what needs one sandbox only ------------------------------------------------------------------------


@pytest.mark.local
def test_permissions_are_given_by_kind_and_forms_filled_with_what_they_offer(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["asks"]
    assert seen.recorded() == [
        "yes",
        "yes",
        {"action": "accept", "content": {"name": "Ada", "color": "red", "sure": True}},
        {"action": "decline"},
    ]
    assert seen.result.rewards == {"reward": 1.0}
    requests, answers = seen.of("permission_request"), seen.of("permission_answer")
    assert [option["optionId"] for option in requests[0]["params"]["options"]] == ["never", "no", "always", "yes"]
    assert answers[0]["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert seen.of("elicitation_answer")[1]["result"] == {"action": "decline"}


@pytest.mark.local
def test_permissions_can_be_denied_by_kind(local_turns: dict[str, Seen]) -> None:
    assert local_turns["asks-in-vain"].recorded() == ["no", "cancelled", {"action": "decline"}, {"action": "decline"}]


@pytest.mark.local
def test_each_step_has_a_session_of_its_own(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["stepped"]
    result = seen.result
    assert (result.rewards, result.error) == ({"reward": 1.0}, None)
    assert [(session.index, session.directory) for session in result.sessions] == [(0, "0.0"), (1, "1.0")]
    assert len({session.id for session in result.sessions}) == 2
    for directory, prompt, text in (("0.0", "Do first.", "one"), ("1.0", "Do second.", "two")):
        methods = [message["method"] for message in seen.sent(directory)]
        assert methods == ["initialize", "session/new", "session/prompt"]
        assert prompt in seen.sent(directory)[2]["params"]["prompt"][0]["text"]
        assert f'"{text}"' in seen.journal("out.jsonl", directory)
    assert [(line["node"], line["text"]) for line in seen.of("agent_message")] == [("n1", "one"), ("n2", "two")]
    assert (result.n_input_tokens, result.n_prompts, result.n_tool_calls) == (1800, 2, 2)


@pytest.mark.local
def test_files_and_terminals_are_served_as_the_agents_user(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["served"]
    assert seen.result.rewards == {"reward": 1.0}
    whole, lines, who, where, killed, closed, owner = seen.recorded()
    assert whole == {"content": "42\nböse\n"}
    assert lines == {"content": "1\n2\n"}
    assert (who["exit"]["exitCode"], who["output"]["output"]) == (0, "agent\n")
    assert (where["exit"]["exitCode"], where["output"]["output"]) == (3, "/tmp\n")
    assert killed["exit"]["exitCode"] != 0
    assert closed["exit"]["exitCode"] == 1
    assert "permission denied" in closed["output"]["output"].lower()
    assert owner["output"] == "agent\n"
    methods = [line["method"] for line in seen.of("client_request")]
    assert methods[:3] == ["fs/write_text_file", "fs/read_text_file", "fs/read_text_file"]
    assert methods.count("terminal/create") == 4


@pytest.mark.local
def test_the_client_reads_nothing_for_an_agent_that_its_user_may_not(local_turns: dict[str, Seen]) -> None:
    error = local_turns["served"].error
    assert "/opt/for-root: " in error.message
    assert "permission denied" in error.message.lower()


@pytest.mark.local
def test_files_and_terminals_are_offered_to_agents_that_need_them(local_turns: dict[str, Seen]) -> None:
    def offered(name: str) -> dict[str, object]:
        capabilities = local_turns[name].sent()[0]["params"]["clientCapabilities"]
        return {"fs": capabilities["fs"], "terminal": capabilities["terminal"]}

    assert offered("served") == {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    assert offered("asks") == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


@pytest.mark.local
def test_the_tasks_tools_reach_the_session_with_their_values(local_turns: dict[str, Seen]) -> None:
    seen = local_turns["uses-tools"]
    (server,) = seen.sent()[1]["params"]["mcpServers"]
    env = {row["name"]: row["value"] for row in server.pop("env")}
    assert server == {"name": "desk", "command": "/opt/desk", "args": ["--quiet"]}
    assert env["DESK_MODE"] == "slow"
    # The agent has the value; what is kept of the session has its name.
    digest = hashlib.sha256(f"Bearer {VARIABLES['BF_TEST_DESK_TOKEN']}".encode()).hexdigest()
    assert digest in seen.of("tool_call_update")[-1]["raw_output"]["output"]
    assert env["DESK_TOKEN"] == "Bearer [BF_TEST_DESK_TOKEN]"


@pytest.mark.local
def test_nothing_is_left_of_agents_that_behave(local_turns: dict[str, Seen]) -> None:
    assert_nothing_is_left(*(local_turns[name] for name in ("asks", "asks-in-vain", "stepped", "uses-tools", "served")))
