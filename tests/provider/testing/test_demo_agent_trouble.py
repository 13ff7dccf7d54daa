"""What the demo agent does to a client on purpose, seen from the bare pipe."""

from __future__ import annotations

import ast
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchflow.testing import demo_agent

AGENT = Path(demo_agent.__file__)
CANCELLED = {"outcome": {"outcome": "cancelled"}}


class Pipe:
    """A demo agent with a session, one line at a time."""

    def __init__(self, home: Path, actions: list[Any], script: dict[str, Any] | None = None) -> None:
        self.home = home
        text = json.dumps({"turns": [actions], **(script or {})})
        self.process = subprocess.Popen(
            [sys.executable, AGENT, text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
        )
        self.request(0, "initialize", protocolVersion=1)
        self.message()
        self.request(1, "session/new", cwd=str(home), mcpServers=[])
        self.session = self.message()["result"]["sessionId"]

    def write(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def request(self, number: int | None, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.write(json.dumps(message if number is None else {**message, "id": number}).encode())

    def prompt(self) -> None:
        self.request(2, "session/prompt", sessionId=self.session, prompt=[{"type": "text", "text": "go"}])

    def line(self) -> bytes:
        assert self.process.stdout
        return self.process.stdout.readline()

    def message(self) -> Any:
        return json.loads(self.line())

    def until_answer(self) -> list[bytes]:
        """The lines up to the answer to the prompt, that one included."""
        lines = [self.line()]
        while b'"id": 2' not in lines[-1]:
            assert lines[-1], "the agent ended without an answer"
            lines.append(self.line())
        return lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            stream.close()


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    opened: list[Pipe] = []
    yield opened
    for pipe in opened:
        pipe.close()


@pytest.fixture
def pipe(tmp_path: Path, pipes: list[Pipe]) -> Any:
    def open_pipe(*actions: Any, **script: Any) -> Pipe:
        pipes.append(Pipe(tmp_path, list(actions), script))
        return pipes[-1]

    return open_pipe


def test_it_floods(pipe: Any) -> None:
    agent = pipe({"flood": 1_000_000, "line": 1000})
    agent.prompt()
    *flood, answer = agent.until_answer()
    assert len(flood) == 1000
    assert {len(line) for line in flood} == {1000}
    assert json.loads(flood[0])["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
    assert json.loads(answer)["result"] == {"stopReason": "end_turn"}


def test_it_writes_one_long_valid_line(pipe: Any) -> None:
    agent = pipe({"line": 5_000_000})
    agent.prompt()
    line, _ = agent.until_answer()
    assert len(line) == 5_000_000
    json.loads(line)


def test_it_writes_what_is_not_utf8(pipe: Any) -> None:
    agent = pipe({"invalid_utf8": True})
    agent.prompt()
    line, _ = agent.until_answer()
    with pytest.raises(UnicodeDecodeError):
        line.decode()
    json.loads(line.decode(errors="replace"))


def test_it_writes_json_that_is_not_json_rpc_and_what_is_not_json(pipe: Any) -> None:
    agent = pipe({"raw": '{"level": "info"}'}, {"raw": "npm warn deprecated"}, {"wrong_id": True})
    agent.prompt()
    info, warning, wrong, _ = agent.until_answer()
    assert (info, warning) == (b'{"level": "info"}\n', b"npm warn deprecated\n")
    assert json.loads(wrong) == {"jsonrpc": "2.0", "id": 987654, "result": {"stopReason": "end_turn"}}


def test_it_dies_in_the_middle_of_a_line(pipe: Any) -> None:
    agent = pipe({"say": "whole"}, {"half_line": True, "code": 9})
    agent.prompt()
    assert json.loads(agent.line())["params"]["update"]["content"]["text"] == "whole"
    half = agent.line()
    assert half.startswith(b'{"jsonrpc"') and not half.endswith(b"\n")
    assert agent.process.wait(300) == 9


@pytest.mark.parametrize(("code", "status"), [(0, 0), (7, 7), (-signal.SIGKILL, -signal.SIGKILL)])
def test_it_exits_in_the_middle_of_a_turn(pipe: Any, code: int, status: int) -> None:
    agent = pipe({"stderr": "about to go", "times": 2}, {"exit": code})
    agent.prompt()
    assert agent.line() == b""
    assert agent.process.wait(300) == status
    assert agent.process.stderr.read() == b"about to go\nabout to go\n"


def test_it_answers_a_prompt_with_an_error(pipe: Any) -> None:
    agent = pipe({"error": "no more quota", "code": -32001})
    agent.prompt()
    assert json.loads(agent.until_answer()[0])["error"] == {"code": -32001, "message": "no more quota"}


def test_a_wrong_script_is_an_error_that_names_the_action(pipe: Any) -> None:
    agent = pipe({"dance": True})
    agent.prompt()
    assert "unknown action: dance" in json.loads(agent.until_answer()[0])["error"]["message"]


def test_it_can_stop_as_a_whole(pipe: Any) -> None:
    agent = pipe({"hang": "stopped"})
    agent.prompt()
    _, status = os.waitpid(agent.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_it_can_ignore_sigterm(pipe: Any) -> None:
    agent = pipe({"ignore_sigterm": True}, {"say": "ready"}, {"wait_for": "go"}, {"say": "alive"})
    agent.prompt()
    agent.line()
    agent.process.terminate()
    (agent.home / "go").touch()
    assert b"alive" in agent.until_answer()[0]


def test_sigterm_ends_it_otherwise(pipe: Any) -> None:
    agent = pipe({"hang": True})
    agent.process.terminate()
    assert agent.process.wait(300) == 128 + signal.SIGTERM


def test_a_daemon_outlives_it(pipe: Any) -> None:
    agent = pipe({"daemon": "echo $$ > pid; exec sleep 600", "record": "record"}, {"wait_for": "pid"}, {"exit": 0})
    agent.prompt()
    agent.process.wait(300)
    pid = json.loads((agent.home / "record").read_text())["result"]
    os.kill(pid, 0)
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)


def test_a_daemon_can_hold_the_output_open(pipe: Any) -> None:
    agent = pipe({"daemon": "exec sleep 600", "keeps_stdout": True, "record": "record"}, {"exit": 0})
    agent.prompt()
    agent.process.wait(300)
    pid = json.loads((agent.home / "record").read_text())["result"]
    ended, _, _ = select.select([agent.process.stdout], [], [], 0.2)
    assert not ended
    os.kill(pid, signal.SIGKILL)
    assert agent.line() == b""


def test_it_notes_everything_it_received(pipe: Any, tmp_path: Path) -> None:
    log = tmp_path / "received.jsonl"
    agent = pipe({"ask": "?", "record": "answers"}, log=str(log))
    agent.prompt()
    agent.line()
    permission = agent.message()
    agent.write(json.dumps({"jsonrpc": "2.0", "id": permission["id"], "result": CANCELLED}).encode())
    agent.until_answer()
    agent.write(b"not json")
    assert agent.message()["error"]["code"] == -32700
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {entry["pid"] for entry in entries} == {agent.process.pid}
    assert [json.loads(entry["line"]).get("method") for entry in entries[:-1]] == [
        "initialize",
        "session/new",
        "session/prompt",
        None,
    ]
    assert entries[-1]["line"] == "not json"


def test_the_model_can_be_set_by_the_unstable_method(pipe: Any) -> None:
    agent = pipe({"say": "x"}, models=["small", "large"])
    agent.request(2, "session/set_model", sessionId=agent.session, modelId="large")
    assert agent.message()["result"] == {}
    agent.request(3, "session/resume", sessionId=agent.session, cwd="/", mcpServers=[])
    assert agent.message()["result"]["models"]["currentModelId"] == "large"
    agent.request(4, "session/set_model", sessionId=agent.session, modelId="huge")
    assert "no such model" in agent.message()["error"]["message"]
    agent.request(5, "session/fly", sessionId=agent.session)
    assert agent.message()["error"]["code"] == -32601


def test_a_cancel_right_behind_a_prompt_ends_its_turn_however_late_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    turns: list[Callable[[], None]] = []

    class Late:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
            turns.append(lambda: target(*args))

        def start(self) -> None: ...

    monkeypatch.setenv("HOME", str(tmp_path))
    agent = demo_agent.DemoAgent({"turns": [[{"wait": 60}]]})
    session = agent.new({"cwd": "/"})["sessionId"]
    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}
    messages = [
        {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt},
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}},
    ]
    lines = [json.dumps(message).encode() + b"\n" for message in messages]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=lines))
        patch.setattr(demo_agent.threading, "Thread", Late)
        patch.setattr(demo_agent.os, "_exit", lambda status: None)
        agent.serve()
    [turn] = turns
    turn()
    assert json.loads(capsysbinary.readouterr().out)["result"] == {"stopReason": "cancelled"}


def test_it_ends_with_its_input(pipe: Any) -> None:
    agent = pipe({"hang": True})
    agent.prompt()
    agent.process.stdin.close()
    assert agent.process.wait(300) == 0


def test_it_is_one_file_for_old_pythons_and_the_standard_library_only() -> None:
    tree = ast.parse(AGENT.read_text(), feature_version=(3, 9))
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= {*sys.stdlib_module_names}
