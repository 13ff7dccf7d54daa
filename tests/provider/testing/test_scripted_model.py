"""Which reply a call gets, how tools are named for each agent, what goes wrong on purpose, what is recorded."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchflow.errors import ConfigError, UsageError
from benchflow.testing.scripted_model import ModelRequest, OfferedTool, Reply, Script, ScriptedModel, SideCalls, ToolUse
from benchflow.testing.scripted_model.agent_tools import NoSuchToolError, known_tools, translate_call

SHELL = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}
USER = {"role": "user", "content": "go"}
SPOKE = {"role": "assistant", "content": "I went"}


class Wire:
    """A bare HTTP client, so that what is on the wire can be seen."""

    def __init__(self, model: ScriptedModel, timeout: float = 300) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", model.port, timeout=timeout)

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> http.client.HTTPResponse:
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        return self.connection.getresponse()


def chat(*messages: dict[str, Any], stream: bool = False, tools: bool = True, model: str = "m") -> dict[str, Any]:
    return {"model": model, "messages": list(messages or [USER]), "stream": stream, "tools": [SHELL] if tools else []}


def say(model: ScriptedModel, body: dict[str, Any] | None = None) -> str:
    """The text of the reply, or its status where it is an error."""
    response = Wire(model).post(body or chat())
    data = json.load(response)
    return str(data["choices"][0]["message"]["content"] if response.status == 200 else response.status)


# --- which reply


def test_replies_come_in_their_order_and_then_an_error_says_that_none_is_left() -> None:
    with ScriptedModel(["one", {"text": "two", "times": 2}]) as model:
        assert [say(model) for _ in range(4)] == ["one", "two", "two", "400"]
        assert len(model.unanswered) == 1
        error = json.load(Wire(model).post(chat()))["error"]["message"]
        assert "none of the script's 2 replies is left" in error and "'go'" in error


def test_a_script_may_say_what_comes_when_nothing_is_left() -> None:
    with ScriptedModel({"replies": ["one"], "otherwise": "again"}) as model:
        assert [say(model) for _ in range(3)] == ["one", "again", "again"]
        assert not model.unanswered


@pytest.mark.parametrize(
    ("when", "body"),
    [
        ({"contains": "need"}, chat({"role": "user", "content": "a needle"})),
        ({"tool_result": "42"}, chat(USER, SPOKE, {"role": "tool", "tool_call_id": "c", "content": "it is 42"})),
        ({"anywhere": "be kind"}, chat({"role": "system", "content": "be kind"}, USER)),
        ({"offers": "bash"}, chat()),
        ({"model": "gpt-*"}, chat(model="gpt-9")),
        ({"dialect": "openai-chat"}, chat()),
        ({"turn": 1}, chat(USER, SPOKE, USER)),
        ({"call": 2}, chat()),
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_reply_waits_for_its_condition(when: dict[str, Any], body: dict[str, Any]) -> None:
    elsewhere = {
        **chat({"role": "user", "content": "something else"}, model="x"),
        "tools": [{"type": "function", "function": {"name": "other"}}],
    }
    path = "/v1/responses" if "dialect" in when else "/v1/chat/completions"
    with ScriptedModel([{"when": when, "text": "guarded"}, {"text": "plain", "times": "always"}]) as model:
        elsewhere |= (
            {"input": "something else", "tools": [{"type": "function", "name": "other"}]} if path[4] == "r" else {}
        )
        assert Wire(model).post(elsewhere, path).getheader("x-scripted-reply") == "1"
        assert say(model, body) == "guarded"


def test_a_condition_looks_only_at_what_came_after_the_model_spoke() -> None:
    with ScriptedModel([{"when": {"contains": "go"}, "text": "guarded"}, "plain"]) as model:
        assert say(model, chat(USER, SPOKE, {"role": "user", "content": "stay"})) == "plain"


def test_many_conversations_at_once_each_get_the_reply_of_their_place() -> None:
    script = {"follow": "conversation", "replies": ["first", {"error": {"status": 503}}, "second"]}
    later = chat(USER, SPOKE, {"role": "user", "content": "and then?"})
    with ScriptedModel(script) as model:
        assert [say(model) for _ in range(3)] == ["first"] * 3
        assert [say(model, later) for _ in range(3)] == ["503", "second", "second"]
        assert say(model) == "first"
        assert say(model, chat(USER, SPOKE, USER, SPOKE, USER)) == "400"


def test_side_calls_never_use_up_the_script() -> None:
    title = {"role": "system", "content": "You are a title generator. You output ONLY a thread title."}
    suggestion = {"role": "user", "content": "[SUGGESTION MODE: Suggest what the user might naturally type next]"}
    script = {"replies": ["one", "two"], "side": {"reply": "A title", "contains": ["summarise this"]}}
    with ScriptedModel(script) as model:
        assert say(model, chat(tools=False)) == "A title"
        assert say(model, chat(title, USER)) == "A title"
        assert say(model) == "one"
        assert say(model, chat(USER, SPOKE, suggestion)) == "A title"
        assert say(model, chat({"role": "user", "content": "summarise this"})) == "A title"
        assert say(model) == "two"
        assert [call.reply for call in model.main_calls] == ["0", "1"]
        assert len(model.side_calls) == 4


def test_a_call_without_tools_can_be_part_of_the_task() -> None:
    with ScriptedModel({"replies": ["verdict"], "side": {"without_tools": False}}) as model:
        assert say(model, chat(tools=False)) == "verdict"


def test_a_python_callable_sees_the_request_and_makes_the_reply() -> None:
    def program(request: ModelRequest) -> Any:
        return f"call {request.number}: {request.user_text}" if request.number < 3 else None

    async def later(request: ModelRequest) -> Any:
        await asyncio.sleep(0)
        return Reply(text=request.headers["authorization"])

    with ScriptedModel(program) as model:
        assert [say(model) for _ in range(3)] == ["call 1: go", "call 2: go", "400"]
    with ScriptedModel(later, side=SideCalls(without_tools=False)) as model:
        assert "Bearer key" in Wire(model).post(chat(tools=False), Authorization="Bearer key").read().decode()


def test_a_wrong_script_is_refused_by_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    for text, problem in [
        ("replies: [{txt: hello}]", r"replies\[0\].txt"),
        ("replies: [{tools: [{arguments: {}}]}]", "either `tool` .generic. or `name`"),
        ("just text", "a mapping or a list"),
        ("replies: [", "is not valid YAML"),
    ]:
        file.write_text(text)
        with pytest.raises(ConfigError, match=problem) as error:
            Script.from_yaml(file)
        assert str(file) in str(error.value)


# --- tools


def offers(*tools: OfferedTool) -> ModelRequest:
    return ModelRequest("openai-chat", "m", False, "", (), tools, {})


WRITE = ToolUse(tool="write_file", arguments={"path": "/app/it's.txt", "content": "one\ntwo\n"})
PATCH = "*** Begin Patch\n*** Add File: /app/it's.txt\n+one\n+two\n*** End Patch"


def offered(name: str, *properties: str, kind: Any = "function") -> OfferedTool:
    return OfferedTool(name, kind, {"properties": {name: {"type": "string"} for name in properties}})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (offered("Write"), {"file_path": "/app/it's.txt", "content": "one\ntwo\n"}),
        (offered("write", "filePath"), {"filePath": "/app/it's.txt", "content": "one\ntwo\n"}),
        (offered("write", "path"), {"path": "/app/it's.txt", "content": "one\ntwo\n"}),
        (offered("write_file", "file_path"), {"file_path": "/app/it's.txt", "content": "one\ntwo\n"}),
        (offered("apply_patch", kind="custom"), PATCH),
        (offered("apply_patch", "patchText"), {"patchText": PATCH}),
    ],
    ids=["claude", "opencode", "pi", "gemini", "codex", "opencode-gpt"],
)
def test_a_generic_tool_becomes_what_the_agent_offers(tool: OfferedTool, arguments: Any) -> None:
    call = translate_call(WRITE, offers(offered("other"), tool), "call_1")
    assert (call.name, call.kind, call.arguments) == (tool.name, tool.kind, arguments)


def test_a_file_is_written_through_the_shell_where_there_is_only_a_shell(tmp_path: Path) -> None:
    target = tmp_path / "sub" / "it's.txt"
    use = ToolUse(tool="write_file", arguments={"path": str(target), "content": "100% 'sure'\n$HOME\n"})
    call = translate_call(use, offers(offered("exec_command", "cmd")), "call_1")
    assert isinstance(call.arguments, dict)
    subprocess.run(["/bin/sh", "-c", call.arguments["cmd"]], check=True)
    assert target.read_text() == "100% 'sure'\n$HOME\n"


def test_shells_of_one_name_are_told_apart_by_their_parameters() -> None:
    use = ToolUse(tool="shell", arguments={"command": "ls"})
    as_list = OfferedTool("shell", schema={"properties": {"command": {"type": "array"}}})
    assert translate_call(use, offers(as_list), "c").arguments == {"command": ["bash", "-lc", "ls"]}
    assert translate_call(use, offers(offered("shell", "command")), "c").arguments == {"command": "ls"}


def test_exact_names_and_arguments_are_sent_as_they_are() -> None:
    call = translate_call(ToolUse(name="Bash", arguments="{not json", id="mine"), offers(offered("Bash")), "call_1")
    assert (call.id, call.name, call.arguments) == ("mine", "Bash", "{not json")
    assert translate_call(ToolUse(tool="made_up", arguments={"a": 1}), offers(), "call_1").name == "made_up"


def test_a_generic_tool_that_nothing_serves_is_an_error_that_lists_what_is_offered() -> None:
    with pytest.raises(NoSuchToolError, match="`shell`; offered: browse, think"):
        translate_call(
            ToolUse(tool="shell", arguments={"command": "ls"}), offers(offered("think"), offered("browse")), "c"
        )
    with pytest.raises(NoSuchToolError, match="'content'"):
        translate_call(
            ToolUse(tool="write_file", arguments={"path": "/x"}), offers(offered("apply_patch", kind="custom")), "c"
        )
    with ScriptedModel([{"tools": [{"tool": "read_file", "arguments": {"path": "/x"}}]}]) as model:
        assert say(model) == "400"
        assert len(model.unanswered) == 1


def test_every_agent_of_the_table_can_run_write_and_read() -> None:
    for agent in ("claude-agent-acp", "codex-acp", "gemini", "opencode", "openhands"):
        served = {row.tool for row in known_tools() if agent in row.agents}
        assert {"shell", "write_file", "read_file", "edit_file"} <= served, agent


# --- what goes wrong on purpose


def test_a_stalled_stream_stays_silent_until_the_client_gives_up() -> None:
    with ScriptedModel([{"text": "hello there", "fault": {"kind": "stall", "after": 2}}]) as model:
        wire = Wire(model)
        response = wire.post(chat(stream=True))
        assert b"hello there" in response.readline() + response.readline() + response.readline()
        wire.connection.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            response.read()
        assert len(model.in_flight) == 1
        wire.connection.close()
        response.close()
        model.wait_until_quiet()
        assert model.calls[0].client_left


def test_stopping_the_server_ends_what_is_stalled() -> None:
    with ScriptedModel([{"fault": {"kind": "stall"}}]) as model:
        wire = Wire(model)
        answer = threading.Thread(target=lambda: _ignore_disconnect(wire))
        answer.start()
        model.wait_for_calls(1)
        started = time.monotonic()
    answer.join()
    assert time.monotonic() - started < 60
    assert not model.calls[0].client_left


def _ignore_disconnect(wire: Wire) -> None:
    try:
        wire.post(chat()).read()
    except (http.client.HTTPException, OSError):
        return


@pytest.mark.parametrize("stream", [True, False])
def test_a_truncated_reply_ends_before_its_end(stream: bool) -> None:
    with ScriptedModel([{"text": "hello", "fault": {"kind": "truncate", "after": 2}}, "whole"]) as model:
        with pytest.raises(http.client.IncompleteRead) as cut:
            Wire(model).post(chat(stream=stream)).read()
        assert b"hel" in cut.value.partial and b"[DONE]" not in cut.value.partial
        assert say(model) == "whole"


@pytest.mark.parametrize("stream", [True, False])
def test_garbage_comes_with_status_200(stream: bool) -> None:
    with ScriptedModel([{"fault": {"kind": "garbage", "text": "<html>"}}]) as model:
        response = Wire(model).post(chat(stream=stream))
        assert (response.status, response.read()) == (200, b"<html>")


def test_an_error_says_when_to_come_back() -> None:
    with ScriptedModel([{"error": {"status": 429, "retry_after": 7}}, {"error": {"status": 503}}]) as model:
        limited, down = (Wire(model).post(chat()) for _ in range(2))
        assert (limited.status, limited.getheader("retry-after")) == (429, "7")
        assert (down.status, down.getheader("retry-after")) == (503, None)


def test_a_held_reply_waits_until_the_test_lets_it_go() -> None:
    with ScriptedModel([{"text": "at last", "hold": "gate"}]) as model, ThreadPoolExecutor() as pool:
        answer = pool.submit(say, model)
        model.wait_for_calls(1)
        assert len(model.in_flight) == 1 and not answer.done()
        model.release("gate")
        assert answer.result(timeout=300) == "at last"
        model.wait_until_quiet()


def test_a_reply_can_take_its_time() -> None:
    with ScriptedModel([{"text": "abc", "chunks": 3, "delay": 0.1, "pace": 0.05}]) as model:
        started = time.monotonic()
        body = Wire(model).post(chat(stream=True)).read()
        assert body.count(b'"content":"') == 4
        assert time.monotonic() - started >= 0.1 + 5 * 0.05


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"]
)
def test_a_body_of_another_shape_is_refused(path: str) -> None:
    with ScriptedModel(["never"]) as model:
        assert Wire(model).post(["no object"], f"/v1{path}").status == 400
        assert Wire(model).post({"model": "m", "messages": 3, "input": 3}, f"/v1{path}").status == 400
        assert model.main_calls == []
        assert Wire(model).post({}, "/v1/nothing").status == 404


# --- running it


async def test_fifty_streams_at_once_are_each_complete() -> None:
    text = "word " * 200
    async with ScriptedModel([{"text": text, "times": "always", "pace": 0.001, "chunks": 50}]) as model:

        def stream() -> str:
            lines = Wire(model).post(chat(stream=True)).read().decode().splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

        with ThreadPoolExecutor(50) as pool:
            loop = asyncio.get_running_loop()
            texts = await asyncio.gather(*(loop.run_in_executor(pool, stream) for _ in range(50)))
        assert texts == [text] * 50
        assert len(await model.arrived(50)) == 50
        ids = [call.request.number for call in model.calls if call.request]
        assert sorted(ids) == list(range(1, 51))


def test_a_gemini_stream_without_sse_is_a_json_array() -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    with ScriptedModel({"replies": ["a long enough reply to be cut"], "side": {"without_tools": False}}) as model:
        response = Wire(model).post(body, "/v1beta/models/m:streamGenerateContent")
        assert response.getheader("content-type") == "application/json"
        assert len(json.load(response)) == 3


def test_everything_received_is_recorded(tmp_path: Path) -> None:
    file, began = tmp_path / "records" / "calls.jsonl", time.time()
    with ScriptedModel(["one"], record=file) as model:
        Wire(model).post(chat(), "/v1/chat/completions?beta=true", Authorization="Bearer sk-canary")
        Wire(model).post({"odd": 1}, "/v1/nothing")
        assert [call.path for call in model.calls] == ["/v1/chat/completions", "/v1/nothing"]
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first["headers"]["authorization"] == "Bearer sk-canary"
    assert first["body"]["messages"] == [USER]
    assert (first["query"], first["dialect"], first["side"], first["reply"]) == ("beta=true", "openai-chat", False, "0")
    assert began <= first["time"] <= time.time()
    assert (second["path"], second["reply"], second["dialect"]) == ("/v1/nothing", "404", None)


def test_waiting_for_a_call_that_does_not_come_says_what_did() -> None:
    with ScriptedModel(["one"]) as model:
        say(model)
        with pytest.raises(TimeoutError, match=r"/v1/chat/completions \(0\)"):
            model.wait_for_calls(2, timeout=0.05)


@pytest.fixture
def script_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "script.yaml"
    file.write_text("replies:\n  - text: from a file\n")
    yield file


def test_it_runs_from_the_shell(script_file: Path, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    module = [sys.executable, "-m", "benchflow.testing.scripted_model"]
    server = subprocess.Popen([*module, script_file, "--record", record], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().strip().rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()))
        assert json.load(connection.getresponse())["choices"][0]["message"]["content"] == "from a file"
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) == 0
        assert len(record.read_text().splitlines()) == 1
    finally:
        server.kill()
        server.communicate()
    wrong = subprocess.run([*module, "no-such.yaml"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no-such.yaml" in wrong.stderr


def test_the_package_can_be_imported_without_the_servers_libraries(script_file: Path) -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = sys.modules['starlette'] = None\n"
        "import benchflow.testing\n"
        "from benchflow.testing.scripted_model import Script, ScriptedModel\n"
        f"Script.from_yaml({str(script_file)!r})\n"
        "try:\n    ScriptedModel(['x']).start()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})
    assert "UsageError" in done.stdout and "benchflow[testing]" in done.stdout, done.stderr


def test_it_is_started_once() -> None:
    model = ScriptedModel(["x"])
    with pytest.raises(UsageError, match="not running"):
        model.release("gate")
    with model, pytest.raises(UsageError, match="already running"):
        model.start()
    model.stop()
