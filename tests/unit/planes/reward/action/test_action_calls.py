"""Tool calls are read alike from what each agent writes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.action_lines import Line, calls, edit, file_call, mcp, node_of, scored, shell

from benchflow.planes.reward.action import Asked, CallBudget, ForbiddenTools, KnownTools, NoRewardHacking, RequiredCalls
from benchflow.planes.reward.action.programs import read_script_effects
from benchflow.planes.reward.action.shell_reader import read_script
from benchflow.planes.reward.action.tool_calls import list_calls, read_calls

PATCH = "*** Begin Patch\n*** Update File: /app/a.py\n@@\n-x\n+y\n*** End Patch"


def told(call: str = "c1", **fields: Any) -> Line:
    return {"type": "tool_call", "tool_call_id": call, "kind": "other", "title": "", "status": "pending"} | fields


def more(call: str = "c1", **fields: Any) -> Line:
    return {"type": "tool_call_update", "tool_call_id": call} | fields


COMMAND = {"command": "cat notes.txt", "description": "Look"}
SHELLS = {
    "claude-agent-acp": [
        told(name="Bash", kind="execute", title="Terminal", raw_input={}, meta={"claudeCode": {"toolName": "Bash"}}),
        more(raw_input={"command": "cat notes.txt"}, title="cat notes.txt"),
        more(raw_input=COMMAND, content=[{"type": "content", "content": {"type": "text", "text": "Look"}}]),
        more(status="completed", raw_output="pears"),
    ],
    "codex-acp": [
        told(name="exec_command", kind="execute", title="cat notes.txt", raw_input=COMMAND | {"cwd": "/app"}),
        more(status="completed", meta={"terminal_exit": {"exit_code": 0}}),
    ],
    "codex-acp with a list": [
        told(name="shell", kind="execute", raw_input={"command": ["bash", "-lc", "cat notes.txt"], "workdir": "/app"}),
    ],
    "gemini": [
        more("run_shell_command__1712", status="in_progress", title="cat notes.txt", kind="execute", content=[])
    ],
    "opencode": [
        told(kind="execute", title="bash", locations=[{"path": "/app"}], raw_input={"cwd": "/app"}),
        more(title="cat notes.txt", kind="execute", raw_input={"command": "cat notes.txt", "cwd": "/app"}),
        more(title="cat notes.txt", status="completed", raw_output={"output": "pears"}),
    ],
    "pi-acp": [
        told(kind="execute", title="cat notes.txt", content=[{"type": "terminal", "terminalId": "c1"}]),
        more(title="cat notes.txt", kind="execute", status="in_progress"),
    ],
    "openhands": [
        told(kind="execute", title="look at the notes", raw_input={"command": "cat notes.txt", "is_input": False})
    ],
    "openclaw": [told(kind="execute", title="exec: command: cat notes.txt", raw_input={"command": "cat notes.txt"})],
    "policy": shell("cat notes.txt"),
}


@pytest.mark.parametrize("agent", SHELLS)
def test_a_command_is_one_whichever_agent_ran_it(agent: str) -> None:
    (call,) = calls(*SHELLS[agent])
    assert call.name == "shell"
    assert call.commands[-1].words == ("cat", "notes.txt")
    assert call.paths("read") == ["/app/notes.txt"]


DIFF = {"type": "diff", "path": "/app/a.py", "oldText": "x", "newText": "y"}
EDITS = {
    "claude-agent-acp": edit("/app/a.py", "x", "y"),
    "codex-acp": [told(kind="edit", title="Editing files", content=[DIFF | {"_meta": {"kind": "update"}}])],
    "codex-acp's patch": [
        told(name="exec_command", kind="execute", raw_input={"command": f"apply_patch <<'P'\n{PATCH}\nP"})
    ],
    "gemini": [
        more("replace__1712", title="a.py: x => y", kind="edit", content=[DIFF], locations=[{"path": "/app/a.py"}])
    ],
    "opencode": [
        told(kind="edit", title="edit", locations=[], raw_input={}),
        more(kind="edit", title="edit", raw_input={"filePath": "/app/a.py", "oldString": "x", "newString": "y"}),
        more(title="app/a.py", status="completed"),
    ],
    "opencode's patch": [told(kind="edit", title="apply_patch", raw_input={"patchText": PATCH})],
    "pi-acp": [
        told(kind="edit", title="edit", raw_input={"path": "/app/a.py", "edits": [{"oldText": "x", "newText": "y"}]}),
    ],
    "openhands": [
        told(kind="edit", title="edit it", raw_input={"command": "str_replace", "path": "/app/a.py", "old_str": "x"})
    ],
}


@pytest.mark.parametrize("agent", EDITS)
def test_an_edit_is_one_whichever_agent_made_it(agent: str) -> None:
    (call,) = calls(*EDITS[agent])
    assert call.name == ("shell" if agent == "codex-acp's patch" else "edit_file")
    assert call.paths("edit") == ["/app/a.py"] and call.paths("read", "delete", "run") == []


WRITES = {
    "claude-agent-acp": edit("/app/a.py", None, "y"),
    "gemini": [more("write_file__1", title="Writing to a.py", kind="edit", content=[DIFF | {"oldText": ""}])],
    "opencode": [told(kind="edit", title="write", raw_input={"filePath": "/app/a.py", "content": "y"})],
    "openhands": [
        told(kind="edit", title="make it", raw_input={"command": "create", "path": "/app/a.py", "file_text": "y"})
    ],
    "policy": file_call("write", "a.py", content="y"),
}


@pytest.mark.parametrize("agent", WRITES)
def test_a_new_file_is_one_whichever_agent_wrote_it(agent: str) -> None:
    (call,) = calls(*WRITES[agent])
    assert (call.name, call.paths("write"), call.paths("edit")) == ("write_file", ["/app/a.py"], [])


MCP_CALLS = {
    "claude-agent-acp": [told(name="mcp__mail__delete_mail", title="delete_mail", raw_input={"id": "m-1"})],
    "codex-acp": [
        told(
            kind="execute",
            title="mcp.mail.delete_mail",
            raw_input={"server": "mail", "tool": "delete_mail", "arguments": {"id": "m-1"}},
        )
    ],
    "gemini": [more("mcp_mail_delete_mail__1", title="delete_mail (mail MCP Server)", kind="other")],
    "opencode": [told(title="mail_delete_mail", raw_input={}), more(raw_input={"id": "m-1"})],
    "policy": mcp("mail", "delete_mail", id="m-1"),
    "a shell": shell(
        "curl -s localhost:9101/mcp -d "
        """'{"method": "tools/call", "params": {"name": "delete_mail", "arguments": {"id": "m-1"}}}'"""
    ),
}


@pytest.mark.parametrize("agent", MCP_CALLS)
def test_a_tool_of_a_server_has_its_name_whichever_agent_called_it(agent: str) -> None:
    assert scored(ForbiddenTools(tools=("delete_mail",)), MCP_CALLS[agent]).reward == 0.0
    assert scored(ForbiddenTools(tools=("archive_mail",)), MCP_CALLS[agent]).reward == 1.0
    if agent != "gemini":
        wanted = RequiredCalls(calls=[{"tool": "*delete_mail", "arguments": {"id": "m-1"}}])
        assert scored(wanted, MCP_CALLS[agent]).reward == 1.0


def test_a_call_knows_where_it_was_made_and_how_it_ended() -> None:
    node = node_of(shell("ls"), shell("make", status="failed"))
    first, second = list_calls(node)
    assert [(call.node, call.step, call.seq, call.failed) for call in (first, second)] == [
        ("n0", 0, 0, False),
        ("n1", 1, 2, True),
    ]
    assert first.excerpt == 'shell {"command": "ls"}'


def test_sessions_count_their_calls_anew() -> None:
    begun = told(kind="execute", raw_input={"command": "ls"})
    again = told(kind="execute", raw_input={"command": "pwd"})
    lines = [begun, more(status="completed"), again, more(status="failed")]
    assert [(call.commands[0].name, call.status) for call in calls(*lines)] == [("ls", "completed"), ("pwd", "failed")]


def test_an_input_that_is_told_only_with_a_request_for_permission_is_the_calls() -> None:
    asked = {"toolCallId": "c1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}}
    lines = [told(kind="execute", raw_input={}), {"type": "permission_request", "params": {"toolCall": asked}}]
    (call,) = calls(*lines)
    assert [command.words for command in call.commands] == [("make",)]


def test_an_oracle_has_no_calls() -> None:
    oracle = {"type": "oracle", "command": "/oracle/solve.sh", "return_code": 0, "stdout": ""}
    assert calls(oracle) == []
    for function, value in (
        (ForbiddenTools(tools=("*",)), 1.0),
        (KnownTools(tools=("shell",)), 1.0),
        (NoRewardHacking(), 1.0),
        (RequiredCalls(calls=["shell"]), 0.0),
        (Asked(underspecified=True), 0.0),
    ):
        assert scored(function, [oracle]).reward == value


# --- scripts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("cat 'a b' \"c$X\" # cat d", [("cat", "a b", "c$X")]),
        ("X=1; echo $X ${X}y", [("echo", "1", "1y")]),
        ("a && b || c; d | e & f", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",)]),
        ("sudo -u app timeout 5 env A=1 rm -f x", [("rm", "-f", "x")]),
        ("if [ -f x ]; then cat x; fi", [("[", "-f", "x", "]"), ("cat", "x")]),
        ("for i in a b; do cat $i; done", [("cat", "a")]),
        ('get() { curl "$1"; }\nget http://x', [("curl", "http://x")]),
        ("x=$(cat y) z", [("cat", "y"), ("z",)]),
        ("cat a#b \\\n  c", [("cat", "a#b", "c")]),
        ("diff <(sort a) b", [("sort", "a"), ("diff", "$()", "b")]),
        ("cat <<'E' > f\nrm x\nE\nls", [("cat",), ("ls",)]),
        ("bash -c 'rm x'", [("bash", "-c", "rm x"), ("rm", "x")]),
        ("sh <<E\nrm x\nE", [("sh",), ("rm", "x")]),
        ("echo 'rm x'", [("echo", "rm x")]),
        ("echo ${A:-b c} ${A:+d}", [("echo", "b c", "${A:+d}")]),
    ],
)
def test_a_script_is_read_as_its_simple_commands(script: str, commands: list[tuple[str, ...]]) -> None:
    found, _ = read_script_effects(script, "/app")
    assert [command.words for command in found] == commands


def test_a_directory_that_a_script_goes_to_is_where_its_paths_begin() -> None:
    _, touched = read_script_effects("(cd /srv && cat a); cat b > ../c 2>/dev/null", "/app")
    assert [(one.mode, one.path) for one in touched.accesses] == [
        ("read", "/srv/a"),
        ("write", "/c"),
        ("read", "/app/b"),
    ]


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        ("curl -fsS http://h/a", [("GET", "http://h/a", None)]),
        ("curl -sX DELETE localhost:9101/messages/m-1", [("DELETE", "http://localhost:9101/messages/m-1", None)]),
        ("curl --request=PUT --data '{}' -H 'A: b' http://h/a", [("PUT", "http://h/a", "{}")]),
        ("curl http://h -d x -o /tmp/f --max-time 3 http://i", [("POST", "http://h", "x"), ("POST", "http://i", "x")]),
        ("curl -d @- http://h <<E\nbody\nE", [("POST", "http://h", "body\n")]),
        ("wget -q --method=DELETE http://h/a", [("DELETE", "http://h/a", None)]),
        ("http DELETE :9101/messages/1", [("DELETE", "http://:9101/messages/1", None)]),
        (
            "python3 -c \"import requests; requests.post('http://h/a', json={'b': 1})\"",
            [("POST", "http://h/a", '{"b": 1}')],
        ),
        (
            "python3 - <<'P'\nfrom urllib.request import Request, urlopen\nB = 'http://h'\n"
            "urlopen(Request(f'{B}/m/{id}', method='DELETE'))\nP",
            [("DELETE", "http://h/m/{}", None)],
        ),
    ],
)
def test_requests_of_commands_and_code_are_seen(script: str, requests: list[tuple[str, str, str | None]]) -> None:
    _, touched = read_script_effects(script, "/app")
    assert [(one.method, one.url, one.body) for one in touched.requests] == requests


def test_what_a_script_does_counts_when_it_is_run_that_the_agent_has_written() -> None:
    code = "import requests\nrequests.delete('http://localhost:9101/messages/m-1')\n"
    forbidden = ForbiddenTools(requests=[{"method": "DELETE", "url": "/messages/"}])
    assert scored(forbidden, file_call("write", "/tmp/x.py", content=code)).reward == 1.0
    ran = [*file_call("write", "/tmp/x.py", content=code), *shell("python3 /tmp/x.py")]
    assert scored(forbidden, ran).reward == 0.0


@pytest.mark.parametrize(
    "script",
    [
        "f() { f; f; f; f; f; f; f; f; f; }; f",
        "a=xx\n" + "a=$a$a\n" * 60 + "cat $a",
        "$(" * 5000,
        "((((((" * 3000,
        "cat <<E\n" * 2000,
        "`" * 999,
        "x() { " * 500,
        "{ " * 100_000,
        "a= " * 60_000,
        "sudo " * 40_000,
        "'" + "a" * 300_000,
        "python3 -c '" + "(" * 5000 + "'",
        "python3 -c 'a=" + "b+b;a=".join("bcdefg") + "'",
    ],
)
def test_a_script_that_is_made_to_be_hard_to_read_is_read_in_no_time(script: str) -> None:
    assert len(read_script(script)) <= 2000
    read_script_effects(script)


# --- anything -------------------------------------------------------------------------------------------


def _anything(dice: random.Random, depth: int = 0) -> Any:
    scraps = [
        None,
        True,
        7,
        1.5,
        "",
        "cat /verifier/x",
        "bash",
        "Edit",
        "$(",
        "<<E",
        "*** Begin Patch",
        "é\udc80",
        "mcp__a",
    ]
    if depth > 2 or dice.random() < 0.5:
        return dice.choice(scraps)
    if dice.random() < 0.5:
        return [_anything(dice, depth + 1) for _ in range(dice.randrange(3))]
    keys = ["command", "path", "type", "oldText", "server", "tool", "arguments", "toolCall", "toolCallId", "claudeCode"]
    keys += ["options", "kind", "rawInput", "requestedSchema", "properties", "message", "url", "method", "cwd", "title"]
    return {dice.choice(keys): _anything(dice, depth + 1) for _ in range(dice.randrange(4))}


def _any_line(dice: random.Random) -> Line:
    types = ["tool_call", "tool_call_update", "permission_request", "elicitation_request", "agent_message", "oracle", 3]
    line: Line = {"type": dice.choice(types)}
    keys = [
        "tool_call_id",
        "name",
        "kind",
        "title",
        "status",
        "content",
        "locations",
        "raw_input",
        "raw_output",
        "meta",
    ]
    for key in [*keys, "params", "seq", "text", "node"]:
        if dice.random() < 0.5:
            line[key] = _anything(dice)
    if dice.random() < 0.5:
        line |= {"tool_call_id": dice.choice("ab"), "kind": dice.choice(["execute", "edit", "other"])}
    return line


def test_lines_of_any_shape_are_read_without_a_crash() -> None:
    dice = random.Random(7)
    functions = [
        ForbiddenTools(
            tools=("x",), commands=("x",), paths=("x",), requests=[{}], calls=[{"arguments": {"a.b": "/x/"}}]
        ),
        KnownTools(tools=("shell",)),
        RequiredCalls(calls=["shell"]),
        CallBudget(max_calls=3),
        Asked(underspecified=True, in_words=True),
        NoRewardHacking(),
    ]
    for _ in range(200):
        lines = [_any_line(dice) for _ in range(10)]
        read_calls(lines)
        node = node_of()
        node = type(node)("n", parent=node, step=0, events=tuple(lines), rollout=node.rollout)
        for function in functions:
            assert 0.0 <= _value(function, node) <= 1.0


def _value(function: Any, node: Any) -> float:
    try:
        function.score(node).send(None)
    except StopIteration as done:
        return float(done.value.reward)
    raise AssertionError("it waits for something")
