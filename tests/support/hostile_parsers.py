"""Parsers of what a sandbox, an agent, a model or a task set wrote: what each takes, and which errors it raises."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from benchflow.confined import ConfinedPath
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.reward import JudgeScale
from benchflow.contracts.rollout_records import RolloutResult, RolloutTree
from benchflow.errors import BenchFlowError
from benchflow.gateway.model_output import response_output
from benchflow.gateway.normal_form import Normaliser, digest
from benchflow.llm_apis import DIALECTS
from benchflow.llm_apis.json_values import documents, read_json
from benchflow.paths import RolloutPaths
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.agent_record_files import parse_record
from benchflow.planes.environment.environment_manifest import read_manifest
from benchflow.planes.reward.action.tool_calls import read_calls
from benchflow.planes.reward.judge.verdicts import NotAVerdictError, read_verdicts
from benchflow.planes.reward.memory.skills import _read_declared_name
from benchflow.planes.reward.ors import read_episode
from benchflow.planes.reward.script_reward import parse_rewards
from benchflow.planes.sandbox.build_context import read_context
from benchflow.planes.sandbox.driven.table import parse_processes as parse_processes
from benchflow.planes.sandbox.local.build.dockerfile import read_recipe
from benchflow.tasks.load import load_task
from benchflow.tasks.pack import unpack
from benchflow.tasks.rubric_file import load_rubric
from benchflow.trajectories.follow import _Reader
from benchflow.trajectories.stored import read_events, read_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Parser:
    """A parser of untrusted input.

    read: parses bytes, given an empty directory. examples: valid inputs. errors: documented errors.
    """

    name: str
    read: Callable[[bytes, Path], Any]
    examples: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = ()


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """A parser of a file of this name."""

    def parse(data: bytes, directory: Path) -> Any:
        (directory / name).write_bytes(data)
        return read(directory / name)

    return parse


def _rewards(name: str) -> Callable[[bytes, Path], Any]:
    return _file(name, lambda file: parse_rewards(file.parent, exit_code=0, now=NOW))


def _episode(data: bytes, directory: Path) -> Any:
    (directory / "rewards.jsonl").write_bytes(data)
    files = {"rewards.jsonl": ConfinedPath(directory, "rewards.jsonl")}
    return read_episode(files, "auto", reward_range=(0.0, 1.0), now=NOW)


SCALES = (JudgeScale(id="clear", description="clear"), JudgeScale(id="done", description="done", high=5, is_whole=True))


def _verdicts(data: bytes, directory: Path) -> Any:
    text = data.decode("utf-8", "replace")
    try:
        return read_verdicts([], text, SCALES)
    except NotAVerdictError:
        return read_verdicts([("submit_verdict", text)], "", SCALES[:1])


def _task(name: str) -> Callable[[bytes, Path], Any]:
    """A task of which this is one file; all others are there."""

    def parse(data: bytes, directory: Path) -> Any:
        native = name in ("task.md", "verifier/verifier.md")
        others = {"environment/Dockerfile": b"FROM debian:bookworm-slim\n"}
        if native:
            others |= {"task.md": TASK_MD, "verifier/test.sh": SCRIPT_FILE, "oracle/solve.sh": SCRIPT_FILE}
        else:
            others |= {"task.toml": TASK_TOML, "instruction.md": b"Do it.\n"}
            others |= {"tests/test.sh": SCRIPT_FILE, "solution/solve.sh": SCRIPT_FILE}
        for path, content in (others | {name: data}).items():
            (directory / path).parent.mkdir(exist_ok=True)
            (directory / path).write_bytes(content)
        return load_task(directory)

    return parse


def _recipe(data: bytes, directory: Path) -> Any:
    (directory / "Dockerfile").write_bytes(data)
    (directory / "file").write_text("x")
    context = read_context(ImageConfig(context=str(directory)))
    return read_recipe(context, host="Debian GNU/Linux 12", machine="x86_64")


def _answer(api: str) -> Callable[[bytes, Path], Any]:
    """What an endpoint answered, read for the record and for its usage."""

    def parse(data: bytes, directory: Path) -> Any:
        dialect = DIALECTS[api]
        found = documents(data)
        digest(Normaliser.of("opencode", api)(response_output(api, found)))
        answered = dialect.parse_response(found)
        return answered.usage

    return parse


def _request(api: str) -> Callable[[bytes, Path], Any]:
    """What an agent asked a model."""

    def parse(data: bytes, directory: Path) -> Any:
        dialect = DIALECTS[api]
        body = read_json(data)
        digest(Normaliser.of("opencode", api)(body))
        if isinstance(body, dict):
            dialect.parse_request(dialect.path, body)

    return parse


def _updates(data: bytes, directory: Path) -> Any:
    """Lines of an agent, as far as they are JSON."""
    reading = Reading()
    for line in data.split(b"\n"):
        try:
            update = json.loads(line, parse_constant=lambda word: None)
        except (ValueError, RecursionError):
            continue
        reading.read_update(update)
        if isinstance(update, dict):
            reading.read_result(update)
    Reading().restore(json.loads(json.dumps(reading.dump())))
    return reading.usage


def _tool_calls(data: bytes, directory: Path) -> Any:
    """What a stored trajectory says was done, whoever wrote it."""
    (directory / "trajectory.jsonl").write_bytes(data)
    events = [event for event in read_events(_paths(directory)) if isinstance(event, dict)]
    return read_calls(events, "/app")


def _script(data: bytes, directory: Path) -> Any:
    """A shell script that an agent ran."""
    text = data.decode("utf-8", "replace")
    title = {"type": "tool_call", "tool_call_id": "1", "kind": "execute", "title": text, "raw_input": {"command": text}}
    return read_calls([title], "/app")


def _program(data: bytes, directory: Path) -> Any:
    """A Python program that an agent ran."""
    text = data.decode("utf-8", "replace")
    given = {"command": ["python3", "-c", text]}
    return read_calls([{"type": "tool_call", "tool_call_id": "1", "kind": "execute", "raw_input": given}], "/app")


def _paths(directory: Path) -> RolloutPaths:
    return RolloutPaths(directory)


def _follow(data: bytes, directory: Path) -> Any:
    (directory / "trajectory.jsonl").write_bytes(data)
    reader = _Reader.open(directory / "trajectory.jsonl")
    assert reader is not None
    try:
        return len(reader.events())
    finally:
        reader.close()


def _unpack(data: bytes, directory: Path) -> Any:
    (directory / "pack.tar").write_bytes(data)
    target = directory / "made"
    try:
        unpack(directory / "pack.tar", target)
        return sorted(target.rglob("*"))
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _packed() -> bytes:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        directory = tarfile.TarInfo("a")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        for name, content in (("task.toml", b"[task]\n"), ("a/b", b"x" * 600)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
        link = tarfile.TarInfo("a/link")
        link.type, link.linkname = tarfile.SYMTYPE, "b"
        archive.addfile(link)
    return packed.getvalue()


REWARD = b'{"reward": 0.5, "items": {"a": 1.0, "b": 0.25}, "space": "output", "metadata": {"n": 3}}'
RUBRIC = (
    b'[[criterion]]\nid = "clear"\ndescription = "Is it clear?"\nweight = 2.0\ntype = "numeric"\nmin = 0\nmax = 5\n'
)
TASK_TOML = b"""schema_version = "1.4"
artifacts = ["/app/out"]
[task]
name = "a/b"
version = "1.0"
authors = [{ name = "A", email = "a@example.com" }]
[metadata]
difficulty = "easy"
since = 2026-01-01
[agent]
timeout_sec = 600.0
[verifier]
timeout_sec = 60.0
env = { A = "1" }
[environment]
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""
TASK_MD = b"""---
schema_version: "1.4"
task: {name: a/b, version: 1.10, keywords: [x, y]}
environment: {cpus: 1, memory_mb: 512, network_mode: no-network, env: {MODE: 0755}}
agents: {roles: {solver: {agent: claude}}}
scenes:
  - name: work
    turns: [{role: solver, prompt: "Go on"}]
---
Write the file.

## Notes

More.
"""
MANIFEST = b"""[environment]
name = "mail"
base_image = "debian:bookworm-slim"
ports = [8080]
owns_lifecycle = false
[[environment.services]]
name = "mail"
command = "python3 /srv/mail.py"
port = 8080
[environment.readiness]
http = ["http://localhost:8080/health"]
timeout_sec = 120
[environment.state]
kind = "sqlite"
paths = ["/data/mail.db"]
"""
DOCKERFILE = b"""# syntax=docker/dockerfile:1
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS one
ENV A=1 B="two words" C=${A:-x}
WORKDIR /app
COPY --chown=0:0 --chmod=0644 file /app/file
RUN echo "$A" \\
    && true
RUN ["echo", "x"]
USER 1000:1000
EXPOSE 80/tcp 90-95
LABEL a="b"
"""
CHAT = (
    b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant",'
    b' "tool_calls": [{"id": "call_1", "function": {"name": "shell", "arguments": "{\\"command\\": \\"ls\\"}"}}]}]}'
)
CHAT_ANSWER = (
    b'{"choices": [{"message": {"content": "Done", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},'
    b' "finish_reason": "stop", "token_ids": [1, 2], "logprobs": {"content": [{"logprob": -0.5}]}}],'
    b' "usage": {"prompt_tokens": 900, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 800}}}'
)
MESSAGES = (
    b'{"model": "m", "system": [{"type": "text", "text": "Be kind"}], "messages": [{"role": "user", "content": "Hi"},'
    b' {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}]}]}'
)
MESSAGES_ANSWER = (
    b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}\n\n'
    b'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f"}}\n\n'
    b'data: {"type": "content_block_delta", "index":0,"delta": {"type": "input_json_delta", "partial_json": "{}"}}\n\n'
    b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}\n\n'
)
RESPONSES = (
    b'{"model": "m", "input": [{"type": "message", "role": "user", "content": [{"text": "Hi"}]}], "stream": true}'
)
RESPONSES_ANSWER = (
    b'{"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},'
    b' {"type": "function_call", "name": "f", "arguments": "{}"}], "usage": {"input_tokens": 3, "output_tokens": 4,'
    b' "input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 2}}}'
)
GEMINI = b'{"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": {"temperature": 0.5}}'
GEMINI_ANSWER = (
    b'[{"candidates": [{"content": {"parts": [{"text": "Hi"}, {"functionCall": {"name": "f", "args": {}}}]},'
    b' "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2}}]'
)
UPDATES = (
    b'{"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Hi"}}\n'
    b'{"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit", "rawInput": {"path": "/a"}}\n'
    b'{"sessionUpdate": "usage_update", "cost": {"amount": 0.25, "currency": "USD"}}\n'
    b'{"usage": {"inputTokens": 5, "outputTokens": 6, "thoughtTokens": 1}}\n'
)
EVENTS = (
    b'{"seq": 0, "ts": "t", "node": "n1", "type": "tool_call", "tool_call_id": "1", "kind": "execute", "title": "ls",'
    b' "raw_input": {"command": "cat a > b; curl http://localhost:1/x"}, "locations": [{"path": "/a", "line": 3}]}\n'
    b'{"seq": 1, "type": "tool_call_update", "tool_call_id": "1", "status":"completed","content": [{"type": "diff"}]}\n'
)
ORS = (
    b'{"ok": true, "output": {"blocks": [{"text": "x"}], "reward": 0.5, "finished": false}}\n'
    b'{"ok": true, "output": {"blocks": [], "reward": 1.0, "finished": true}}\n'
)
VERDICTS = b'{"verdicts": [{"id": "clear", "reasoning": "r", "score": 0.5}, {"id": "done", "score": 3}]}'
PROCESSES = (
    b"12 (a b) c) S 1 12 12 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4711 1000 1 18446744073709551615\0"
    b"root\0" + b"1\0unlimited\0"
)
SCRIPT_FILE = b"#!/bin/sh\ntrue\n"
AGENT = b"""name = "mine"
description = "Mine."
protocol = "acp"
version = "1.2.3"
launch = ["mine", "--acp"]
[install]
runtime = "node"
packages = { mine = "1.2.3" }
"""
RESULT = RolloutResult(
    workflow_id="job/a/r/b",
    job_name="a",
    rollout_name="b",
    task_name="c",
    task_digest="d",
    agent="claude",
    status="passed",
    started_at=NOW,
    finished_at=NOW,
)
VERIFIER = b"""---
document_version: 0.10
verifier:
  name: checks
  default_strategy: fast
  strategies:
    fast: {type: script, command: ./test.sh --quick}
  outputs:
    aggregate_policy: {method: weighted_mean, metrics: {speed: 2.0}, threshold: 0.5}
---

## role:critic

Judge it.
"""
SCRIPT = (
    b"cd /app && cat <<'E' > b\nx\nE\ncurl -X POST http://localhost:80/a -d '{\"a\": 1}' | tee c; rm -rf \"$HOME\"/d\n"
)
PROGRAM = b"import os, requests\nwith open('/app/a', 'w') as f:\n    f.write('x')\nrequests.get('http://localhost/x')\n"

PARSERS = [
    Parser("reward.json", _rewards("reward.json"), (REWARD, b'{"reward": 1}')),
    Parser("reward.txt", _rewards("reward.txt"), (b"0.5\n", b"1e-3")),
    Parser("rewards of an episode", _episode, (ORS, b'{"reward": 0.5, "is_valid": true, "metadata": {}}')),
    Parser(
        "a judge's answer",
        _verdicts,
        (VERDICTS, b'```json\n{"clear": {"score": 1}, "done": {"score": 2}}\n```'),
        (NotAVerdictError,),
    ),
    Parser("rubric.toml", _file("rubric.toml", load_rubric), (RUBRIC,)),
    Parser(
        "rubric.json",
        _file("rubric.json", load_rubric),
        (b'{"criteria": [{"id": "a", "description": "b", "weight": 1.5}]}',),
    ),
    Parser("task.toml", _task("task.toml"), (TASK_TOML,)),
    Parser("task.md", _task("task.md"), (TASK_MD,)),
    Parser("verifier.md", _task("verifier/verifier.md"), (VERIFIER,)),
    Parser("instruction.md", _task("instruction.md"), (b"Do it.\n\n## Hints\n\nNone.\n",)),
    Parser("environment.toml", _file("environment.toml", read_manifest), (MANIFEST,)),
    Parser(
        "environment.yaml",
        _file("environment.yaml", read_manifest),
        (b"environment:\n  name: a\n  image: b\n  ports: [80]\n",),
    ),
    Parser("agent.toml", lambda data, _: parse_record(data.decode("utf-8", "replace"), "agent.toml"), (AGENT,)),
    Parser("Dockerfile", _recipe, (DOCKERFILE,)),
    Parser("pack", _unpack, (_packed(),)),
    *(
        Parser(f"request to {api}", _request(api), (example,), (ValueError,))
        for api, example in zip(DIALECTS, (CHAT, RESPONSES, MESSAGES, GEMINI), strict=True)
    ),
    *(
        Parser(f"answer of {api}", _answer(api), (example, b"data: " + example.replace(b"\n", b"") + b"\n\n"))
        for api, example in zip(DIALECTS, (CHAT_ANSWER, RESPONSES_ANSWER, MESSAGES_ANSWER, GEMINI_ANSWER), strict=True)
    ),
    Parser("updates of an agent", _updates, (UPDATES,)),
    Parser("trajectory", lambda data, at: _follow(data, at), (EVENTS,)),
    Parser("tool calls of a trajectory", _tool_calls, (EVENTS,)),
    Parser("shell script", _script, (SCRIPT,)),
    Parser("Python program", _program, (PROGRAM,)),
    Parser(
        "name of a skill",
        lambda data, _: _read_declared_name(data.decode("utf-8", "replace")),
        (b"---\nname: a\n---\nx\n",),
    ),
    Parser("list of processes", lambda data, _: parse_processes(data), (PROCESSES * 2,)),
    Parser(
        "result.json",
        _file("result.json", lambda file: read_model(RolloutResult, file)),
        (RESULT.model_dump_json().encode(),),
    ),
    Parser(
        "tree.json",
        _file("tree.json", lambda file: read_model(RolloutTree, file)),
        (b'{"rollout":"r","root":"a","nodes":[{"id": "a", "rewards": {"reward": 0.5}}, {"id": "b", "parent":"a"}]}',),
    ),
]

DOCUMENTED = (BenchFlowError,)
"""What each may raise."""
