"""Agents from the package index in one job on one task: how each is asked for, what the model says, what it was asked.

The task cannot be solved blindly. What the model writes in the end is made of what the agent's tools gave back: the
file has a number that the script does not know, and the command's output depends on the edit before it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

import docker

from benchflow.contracts.job import AgentSpec
from benchflow.testing.scripted_model import ModelRequest, ReceivedCall, ScriptedModel

BASE_IMAGE = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
STOCK, REPORT = "/app/stock.txt", "/app/report.txt"
BEFORE, AFTER = "pears: few", "pears: many"
INSTRUCTION = f"In {STOCK}, note that there are many pears. Then write the file's SHA-256 into {REPORT}.\n"
DONE = "The report is written."

Api = Literal["anthropic-messages", "openai-chat", "openai-responses", "gemini"]
PATHS: Mapping[Api, str] = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/",
}
"""Where each wire format is asked for, or how its paths begin."""


@dataclass(frozen=True)
class Asked:
    """One agent as the job asks for it, and what it is known to tell.

    provider: as in `provider/model`. variable: what holds its key; by_name: this process has the variable, as a user
    would, instead of the request. says: in the header `user-agent` of its calls. raw: every tool call has its raw
    input and output. prints: what a command has printed is among what is told of it.
    """

    agent: str
    api: Api
    provider: str
    variable: str
    says: str
    raw: bool = True
    prints: bool = True
    by_name: bool = False
    effort: str | None = None

    @property
    def model(self) -> str:
        """As the endpoint spells it: of its own, to tell the calls of one agent from those of another."""
        return f"scripted-{self.agent.replace('/', '-')}"

    @property
    def key(self) -> str:
        return f"key-that-only-{self.agent.replace('/', '-')}-was-given"

    def spec(self, model: ScriptedModel) -> AgentSpec:
        base_url = model.openai_base_url if self.api.startswith("openai") else model.base_url
        env = {} if self.by_name else {self.variable: self.key}
        name = f"{self.provider}/{self.model}"
        return AgentSpec(name=self.agent, model=name, base_url=base_url, effort=self.effort, env=env)


def key_in(call: ReceivedCall) -> str:
    """What a call was made with, wherever its wire format has it."""
    headers = call.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or headers.get("x-api-key") or headers.get("x-goog-api-key") or ""


def effort_in(call: ReceivedCall) -> str | None:
    """How hard a call wants the model to think, wherever its wire format has it."""
    body = call.body
    of_responses, of_messages = body.get("reasoning") or {}, body.get("output_config") or {}
    return of_responses.get("effort") or of_messages.get("effort") or body.get("reasoning_effort")


def host_address() -> str:
    """This host as containers reach it, from whichever bridge: the gateway of the daemon's own."""
    client = docker.from_env()
    try:
        (config, *_) = client.networks.get("bridge").attrs["IPAM"]["Config"]
        # A daemon that has chosen its network itself names only the subnet until it is started once more.
        return str(config.get("Gateway") or next(ip_network(config["Subnet"]).hosts()))
    finally:
        client.close()


def write_task(root: Path) -> Path:
    """The task; its verifier knows what the edited file must be."""
    task = root / "stock"
    for directory in ("environment", "tests"):
        (task / directory).mkdir(parents=True)
    before = f"apples: 5f3a91c07be2d846\n{BEFORE}\n"
    digest = hashlib.sha256(before.replace(BEFORE, AFTER).encode()).hexdigest()
    (task / "environment" / "stock.txt").write_text(before)
    (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR /app\nCOPY stock.txt {STOCK}\n")
    (task / "task.toml").write_text("[agent]\ntimeout_sec = 600\n")
    (task / "instruction.md").write_text(INSTRUCTION)
    test = task / "tests" / "test.sh"
    test.write_text(
        f"#!/bin/sh\nreward=0\n"
        f"echo '{digest}  {STOCK}' | sha256sum -c && [ \"$(cat {REPORT})\" = '{digest}' ] && reward=1\n"
        f"echo $reward > /logs/verifier/reward.txt\n"
    )
    test.chmod(0o755)
    return task


def answer(request: ModelRequest) -> Mapping[str, Any] | str | None:
    """What the model says next. Its place is read off the conversation itself, since so many agents ask at once."""
    results = "\n".join(result.text for result in request.tool_results)
    if request.turn == 0 and INSTRUCTION.strip() in request.text:
        return _calls("I will read it.", "read_file", path=STOCK)
    if request.turn == 1 and BEFORE in results:
        if request.tool("run"):
            # The policy agent edits by commands.
            return _calls("I will edit it.", "shell", command=f"sed -i 's/{BEFORE}/{AFTER}/' {STOCK} && echo edited")
        return _calls("I will edit it.", "edit_file", path=STOCK, old=BEFORE, new=AFTER)
    if request.turn == 2:
        return _calls("I will count.", "shell", command=f"sha256sum {STOCK}")
    if request.turn == 3 and (digest := re.search(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", results)):
        return _calls("I will report.", "write_file", path=REPORT, content=f"{digest.group()}\n")
    return DONE if request.turn == 4 else None


def _calls(text: str, tool: str, **arguments: str) -> Mapping[str, Any]:
    usage = {"input": 1000, "output": 50, "cached": 600}
    return {"text": text, "tools": [{"tool": tool, "arguments": arguments}], "usage": usage}
