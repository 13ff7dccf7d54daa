"""Turns that go well: what an agent did is scored, told, counted and kept, on every sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from support.agent_world import (
    LOCAL,
    RECORD,
    SELDOM_DOCKER,
    SOLVE,
    WORKDIR,
    Seen,
    assert_nothing_is_left,
    declare,
    finished,
    run_tasks,
    submit_tasks,
    write_step,
    write_task,
)

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


@pytest.fixture(scope="module", params=[LOCAL, SELDOM_DOCKER])
def solved(
    request: pytest.FixtureRequest, module_jobs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Seen, JobPaths]:
    """A rollout of a whole turn, and the directory of its job."""
    task = write_task(tmp_path_factory.mktemp("solved"), "solved", WHOLE_TURN)
    name = f"solved-{request.param}"
    seen = run_tasks([task], module_jobs, job_name=name, sandbox=request.param)["solved"]
    return seen, JobPaths(module_jobs / name)


def test_what_the_agent_did_is_scored(solved: tuple[Seen, JobPaths]) -> None:
    result = solved[0].result
    assert (result.status, result.rewards, result.error) == ("passed", {"reward": 1.0}, None)
    assert (result.agent, result.model, result.n_prompts) == ("demo", None, 1)
    assert result.steps[0].turn.stop_reason == "end_turn"
    # Without a look at its model calls the end of a turn is taken from the agent's silence.
    assert result.steps[0].turn.turn_end == "inferred"
    assert_nothing_is_left(solved[0])


def test_the_trajectory_tells_all_that_was_said_and_done(solved: tuple[Seen, JobPaths]) -> None:
    seen, _ = solved
    assert [line["type"] for line in seen.lines] == [
        *("user_message", "agent_thought", "agent_message", "agent_message", "plan"),
        *("tool_call", "tool_call_update", "tool_call", "tool_call_update"),
        *("update", "update"),
    ]
    assert seen.lines[0]["text"].strip() == "Make the answer."
    assert [line["text"] for line in seen.of("agent_thought")] == ["hmm"]
    assert seen.texts == ["I will", " look."]
    wrote, ran = seen.of("tool_call")
    assert wrote["raw_input"] == {"path": f"{WORKDIR}/answer", "content": "42\n"}
    assert (ran["kind"], ran["raw_input"]) == ("execute", {"command": "id -un; pwd"})
    assert seen.of("tool_call_update")[1]["raw_output"] == {"output": f"agent\n{WORKDIR}\n", "exitCode": 0}
    assert {(line["node"], line["role"]) for line in seen.lines} == {("n1", "agent")}
    assert [line["seq"] for line in seen.lines] == list(range(len(seen.lines)))


def test_tokens_money_and_tool_calls_are_counted(solved: tuple[Seen, JobPaths]) -> None:
    seen, job = solved
    (outcome,) = seen.result.steps
    assert outcome.turn.usage is not None
    assert outcome.turn.usage.model_dump(exclude_none=True) == {
        "input_tokens": 900,
        "output_tokens": 12,
        "cached_tokens": 800,
        "reasoning_tokens": 4,
        "cost": 0.25,
        "currency": "USD",
    }
    (row,) = [json.loads(line) for line in job.results.read_text().splitlines()]
    counted = {"n_input_tokens": 900, "n_output_tokens": 12, "cost_usd": 0.25, "n_tool_calls": 2}
    assert {key: row[key] for key in counted} == counted
    assert {key: getattr(seen.result, key) for key in counted} == counted
    summary = json.loads(job.summary.read_text())
    assert (summary["n_input_tokens"], summary["n_output_tokens"], summary["cost_usd"]) == (900, 12, 0.25)


def test_the_session_is_in_the_result_and_its_journals_beside_it(solved: tuple[Seen, JobPaths]) -> None:
    seen, _ = solved
    session = seen.session
    assert (session.agent, session.version, session.user, session.cwd) == ("demo-agent", "1.0.0", "agent", WORKDIR)
    assert session.capabilities["loadSession"] is True
    initialize, new, prompt = seen.sent()
    assert (initialize["params"]["clientInfo"]["name"], new["params"]["cwd"]) == ("benchflow", WORKDIR)
    assert prompt["params"]["sessionId"] == session.id
    assert '"mood_update"' in seen.journal("out.jsonl")
    # It was ended before the verifier began; an agent that ends by itself leaves its end.
    assert not (seen.paths.sessions / "0.0" / "exit.json").exists()


# --- what needs one sandbox only ------------------------------------------------------------------------

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

STEPS = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("first", "second"))
LOCAL_SERVER = """\
[[environment.mcp_servers]]
name = "desk"
transport = "stdio"
command = "/opt/desk"
args = ["--quiet"]
env = { DESK_TOKEN = "Bearer ${BF_TEST_DESK_TOKEN}", DESK_MODE = "${BF_TEST_DESK_MODE:-slow}" }
"""
DESK_TOKEN = "desk-t0k3n-77f2"
"""What the session file of the demo agent says of its servers is not for results: only a digest leaves the sandbox."""
TELLS_TOKEN = "grep -ho 'Bearer desk-[^\"]*' $HOME/.demo-agent/sessions/*.jsonl | head -n 1 | tr -d '\\n' | sha256sum"


FOR_ROOT = "RUN echo closed > /opt/for-root && chmod 600 /opt/for-root\n"


def asking(name: str, root: Path) -> Path:
    return write_task(
        root,
        name,
        [
            {"ask": "may I?", "options": OPTIONS, "record": RECORD},
            {"ask": "only this?", "options": [["yes", "allow_always"]], "record": RECORD},
            {"elicit": "who?", "schema": FORM, "record": RECORD},
            {"elicit": "why?", "schema": OPEN_FORM, "record": RECORD},
            SOLVE,
        ],
    )


def stepped(root: Path) -> Path:
    """A task of two steps: the second finds what the first has made."""
    end = {"end": "end_turn", "usage": USAGE}
    task = write_task(
        root,
        "stepped",
        {"when": "Do first", "do": [{"say": "one"}, {"write": "first", "content": "1"}, end]},
        {"when": "Do second", "do": [{"say": "two"}, {"run": "mv first answer"}, end]},
        config=STEPS,
    )
    write_step(task, "first", f"[ -e {WORKDIR}/first ] && echo 1 > /logs/verifier/reward.txt\n")
    write_step(task, "second")
    return task


def served(root: Path) -> list[Path]:
    """Tasks whose agents have the client read, write and run for them."""
    read, write = {"client_read": "/opt/for-root"}, {"client_write": "/opt/for-root", "content": "x"}
    run = {"client_run": "cat", "args": ["/opt/for-root"], "record": RECORD}
    return [
        write_task(
            root,
            "served",
            [
                {"client_write": "answer", "content": "42\nböse\n"},
                {"client_read": "answer", "record": RECORD},
                {"client_read": "lines", "line": 2, "limit": 2, "record": RECORD},
                {"client_run": "id", "args": ["-un"], "record": RECORD},
                {"client_run": "sh", "args": ["-c", "pwd; exit 3"], "cwd": "/tmp", "record": RECORD},
                {"client_run": "sleep 74001", "kill_after": 0.2, "record": RECORD},
                {"run": "stat -c %U answer", "silent": True, "record": RECORD},
            ],
            build=f"RUN echo open > {WORKDIR}/lines && seq 9 >> {WORKDIR}/lines\n",
        ),
        write_task(root, "reads-closed", [read], build=FOR_ROOT),
        write_task(root, "writes-closed", [write], build=FOR_ROOT),
        write_task(root, "runs-closed", [run], build=FOR_ROOT),
    ]


@pytest.fixture(scope="module")
def turns(module_jobs: Path, agents_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Rollouts by the name of their task; those of `asks` twice, by what was answered."""
    root = tmp_path_factory.mktemp("turns")
    declare(agents_dir, "dependent", session={"client": ["fs", "terminal"]})
    asks = asking("asks", root)
    others = [stepped(root), write_task(root, "uses-tools", [SOLVE, {"run": TELLS_TOKEN}], environment=LOCAL_SERVER)]

    async def run() -> dict[str, Seen]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BF_TEST_DESK_TOKEN", DESK_TOKEN)
            patch.delenv("BF_TEST_DESK_MODE", raising=False)
            auto = await submit_tasks([asks, *others], module_jobs, job_name="auto")
        deny = await submit_tasks([asks], module_jobs, job_name="deny", permissions="deny")
        helped = await submit_tasks(served(root), module_jobs, job_name="helped", agents=["dependent"])
        found = await finished(auto) | await finished(helped)
        return found | {"auto": found["asks"], "deny": (await finished(deny))["asks"]}

    return asyncio.run(run())


@pytest.mark.local
def test_permissions_are_given_by_kind_and_forms_filled_with_what_they_offer(turns: dict[str, Seen]) -> None:
    assert turns["auto"].recorded() == [
        "yes",
        "yes",
        {"action": "accept", "content": {"name": "Ada", "color": "red", "sure": True}},
        {"action": "decline"},
    ]
    assert turns["auto"].result.rewards == {"reward": 1.0}
    requests, answers = turns["auto"].of("permission_request"), turns["auto"].of("permission_answer")
    assert [option["optionId"] for option in requests[0]["params"]["options"]] == ["never", "no", "always", "yes"]
    assert answers[0]["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert turns["auto"].of("elicitation_answer")[1]["result"] == {"action": "decline"}


@pytest.mark.local
def test_permissions_can_be_denied_by_kind(turns: dict[str, Seen]) -> None:
    assert turns["deny"].recorded() == ["no", "cancelled", {"action": "decline"}, {"action": "decline"}]


@pytest.mark.local
def test_each_step_has_a_session_of_its_own(turns: dict[str, Seen]) -> None:
    seen = turns["stepped"]
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
def test_files_and_terminals_are_served_as_the_agents_user(turns: dict[str, Seen]) -> None:
    seen = turns["served"]
    assert (seen.result.rewards, seen.result.error) == ({"reward": 1.0}, None)
    whole, lines, who, where, killed, owner = seen.recorded()
    assert whole == {"content": "42\nböse\n"}
    assert lines == {"content": "1\n2\n"}
    assert (who["exit"]["exitCode"], who["output"]["output"]) == (0, "agent\n")
    assert (where["exit"]["exitCode"], where["output"]["output"]) == (3, "/tmp\n")
    assert killed["exit"]["exitCode"] != 0
    assert owner["output"] == "agent\n"
    methods = [line["method"] for line in seen.of("client_request")]
    assert methods[:3] == ["fs/write_text_file", "fs/read_text_file", "fs/read_text_file"]
    assert methods.count("terminal/create") == 3


@pytest.mark.local
@pytest.mark.parametrize("name", ["reads-closed", "writes-closed"])
def test_the_client_does_nothing_for_an_agent_that_its_user_may_not(turns: dict[str, Seen], name: str) -> None:
    error = turns[name].error
    assert "/opt/for-root: " in error.message
    assert "permission denied" in error.message.lower()


@pytest.mark.local
def test_a_terminal_may_not_read_what_its_user_may_not(turns: dict[str, Seen]) -> None:
    (ran,) = turns["runs-closed"].recorded()
    assert ran["exit"]["exitCode"] == 1
    assert "permission denied" in ran["output"]["output"].lower()


@pytest.mark.local
def test_files_and_terminals_are_offered_to_agents_that_need_them(turns: dict[str, Seen]) -> None:
    def offered(name: str) -> dict[str, object]:
        capabilities = turns[name].sent()[0]["params"]["clientCapabilities"]
        return {"fs": capabilities["fs"], "terminal": capabilities["terminal"]}

    assert offered("served") == {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    assert offered("auto") == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


@pytest.mark.local
def test_the_tasks_tools_reach_the_session_with_their_values(turns: dict[str, Seen]) -> None:
    seen = turns["uses-tools"]
    (server,) = seen.sent()[1]["params"]["mcpServers"]
    env = {row["name"]: row["value"] for row in server.pop("env")}
    assert server == {"name": "desk", "command": "/opt/desk", "args": ["--quiet"]}
    assert env["DESK_MODE"] == "slow"
    # The agent has the value; what is kept of the session has its name.
    digest = hashlib.sha256(f"Bearer {DESK_TOKEN}".encode()).hexdigest()
    assert digest in seen.of("tool_call_update")[-1]["raw_output"]["output"]
    assert env["DESK_TOKEN"] == "Bearer [BF_TEST_DESK_TOKEN]"


def test_nothing_is_left_of_agents_that_behave(turns: dict[str, Seen]) -> None:
    assert_nothing_is_left(*turns.values())
