"""The agent `policy` as a process of this host, and the client's side of it: what its tests stand on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
from acp import schema as s
from pydantic import TypeAdapter
from support.acp_room import CWD

from benchflow.testing.scripted_model import ScriptedModel

Message = dict[str, Any]

POLICY = resources.files("benchflow.planes.agent.policy") / "policy.mjs"
PATIENCE = 300
ANSWERS: dict[str, Any] = {
    "initialize": s.InitializeResponse,
    "session/new": s.NewSessionResponse,
    "session/load": s.LoadSessionResponse,
    "session/prompt": s.PromptResponse,
}


def must_fit(model: Any, data: Any) -> None:
    """Valid, and nothing in it that the schema doesn't know: the official models drop what they can't read."""
    adapter = TypeAdapter(model)
    assert adapter.dump_python(adapter.validate_python(data), mode="json", by_alias=True, exclude_unset=True) == data


class RefusedError(Exception):
    """An answer that is an error."""


Start = Callable[..., Any]


class Agent:
    """A running agent and what was heard of it; every message is checked against the official schema."""

    def __init__(self, process: asyncio.subprocess.Process, work: Path) -> None:
        self.process, self.work = process, work
        self.updates: list[Message] = []
        self.session = ""
        self._numbers = itertools.count(1000)
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self.stray: list[Message] = []

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "method" in message:
                must_fit(s.SessionNotification, message["params"])
                assert message["params"]["sessionId"] == self.session or not self.session
                self.updates.append(message["params"]["update"])
                continue
            method, answer = self._asked.pop(message["id"], (None, None))
            if answer is None or method is None:
                self.stray.append(message)
            elif "error" in message:
                must_fit(s.Error, message["error"])
                answer.set_exception(RefusedError(f"{message['error']['code']}: {message['error']['message']}"))
            else:
                must_fit(ANSWERS[method], message["result"])
                answer.set_result(message["result"])

    def write(self, line: str | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n" if isinstance(line, str) else line + b"\n")

    def ask(self, method: str, params: Message) -> asyncio.Future[Any]:
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = (method, answer)
        self.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return answer

    async def call(self, method: str, params: Message) -> Message:
        return await asyncio.wait_for(self.ask(method, params), PATIENCE)

    async def new(self, *servers: Message) -> None:
        self.session = (await self.call("session/new", {"cwd": str(self.work), "mcpServers": servers}))["sessionId"]

    async def load(self, session: str, *servers: Message) -> None:
        await self.call("session/load", {"cwd": str(self.work), "mcpServers": servers, "sessionId": session})
        self.session = session

    def begin(self, text: str = "go") -> asyncio.Future[Any]:
        return self.ask("session/prompt", {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]})

    async def prompt(self, text: str = "go") -> Message:
        return await asyncio.wait_for(self.begin(text), PATIENCE)

    def cancel(self) -> None:
        params = {"sessionId": self.session}
        self.write(json.dumps({"jsonrpc": "2.0", "method": "session/cancel", "params": params}))

    def said(self, kind: str = "agent_message_chunk") -> list[str]:
        return [update["content"]["text"] for update in self.updates if update["sessionUpdate"] == kind]

    def outputs(self) -> list[tuple[str, str]]:
        """Of every tool call that has ended: its status, and what the model was told."""
        ended = [update for update in self.updates if update["sessionUpdate"] == "tool_call_update"]
        return [(update["status"], update["rawOutput"]["output"]) for update in ended]


@asynccontextmanager
async def running(
    node: Path, place: Path, model: ScriptedModel, /, *, home: str = "home", session: bool = True, **settings: Any
) -> AsyncIterator[Agent]:
    """The agent asked to use this model, by default with a session. home, `work`: directories of `place`.

    settings: its variables, without what they all begin with.
    """
    (place / "work").mkdir(exist_ok=True)
    (place / home).mkdir(exist_ok=True)
    env = {"POLICY_BASE_URL": model.openai_base_url, "POLICY_MODEL": "scripted"}
    env |= {f"POLICY_{name.upper()}": str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(str(node), str(POLICY)),
        env={"HOME": str(place / home), "PATH": os.environ["PATH"], **env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    agent = Agent(process, place / "work")
    listening = asyncio.create_task(agent.listen())
    try:
        if session:
            await agent.new()
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


def sent(model: ScriptedModel, call: int = -1) -> list[Message]:
    """The messages of a call."""
    messages: list[Message] = model.main_calls[call].body["messages"]
    return messages


def told(model: ScriptedModel, call: int = -1) -> list[str]:
    """What a call says of tools' results."""
    return [message["content"] for message in sent(model, call) if message["role"] == "tool"]


def tool(name: str, **arguments: Any) -> Message:
    return {"name": name, "arguments": arguments}


def run_tool(command: str) -> Message:
    return tool("run", command=command)


def use(*tools: Message) -> list[Any]:
    """A script: one reply with these calls, and one that ends the turn."""
    return [{"tools": list(tools)}, "Done."]


def asleep(length: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", length]]


GOAL: list[Any] = [
    {
        "thinking": "I should look first.",
        "text": "Looking.",
        "tools": [{"tool": "read_file", "arguments": {"path": f"{CWD}/in.txt"}}],
        "usage": {"input": 100, "output": 10, "cached": 60, "reasoning": 4},
    },
    {
        "when": {"tool_result": "three"},
        "tools": [
            {"tool": "write_file", "arguments": {"path": f"{CWD}/sub/out.txt", "content": "3\n"}},
            {"tool": "shell", "arguments": {"command": "cat sub/out.txt; echo said >&2; pwd"}},
        ],
        "usage": {"input": 200, "output": 20, "cached": 100},
    },
    {"when": {"tool_result": "[exit status 0]"}, "text": "It is done.", "usage": {"input": 300, "output": 3}},
]
