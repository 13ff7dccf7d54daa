"""Jobs of the policy agent with a scripted model, by way of the gateway; and a program that calls in its name.

The program is in the image, so that an agent's commands, what they leave behind, and a verifier can be asked to call
the model with the agent's own token, and to show what a process of the sandbox could see of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.agent_world import Seen, write_task

from benchflow.contracts.gateway import CallUsage
from benchflow.contracts.job import AgentSpec
from benchflow.gateway.prices import cost
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

Json = dict[str, Any]

KEY = "k3y-of-the-upstream-qv81nd5t"
"""What only the gateway and the model may see."""

MODEL = "gpt-5.6-luna"
"""One with a known price."""

USAGE = {"input": 1000, "output": 50, "cached": 600}
"""Of each main call."""

ASK = """\
'''ask.py see FILE | save | call PROMPT [FILE] | post PATH: the last two print or write the status of the answer.'''
import glob, json, sys, time, urllib.error, urllib.request

def environments():
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            yield path, open(path, "rb").read()
        except OSError:
            pass

def agents():
    for _, data in environments():
        table = dict(line.split(b"=", 1) for line in data.split(b"\\0") if b"=" in line)
        if b"POLICY_API_KEY" in table:
            return {name: table[b"POLICY_" + name.encode()].decode() for name in ("API_KEY", "BASE_URL", "MODEL")}
    return json.load(open("/tmp/agents.json"))

def call(prompt, path="/chat/completions"):
    given = agents()
    body = json.dumps({"model": given["MODEL"], "messages": [{"role": "user", "content": prompt}]})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + given["API_KEY"]}
    request = urllib.request.Request(given["BASE_URL"] + path, body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=float(sys.argv[4]) if len(sys.argv) > 4 else 60) as answer:
            # Whoever leaves before the end has no answer.
            answer.read()
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return "none: " + str(getattr(error, "reason", error))

if sys.argv[1] == "see":
    # As digits: whatever looks for a key in files must not find and remove it here.
    open(sys.argv[2], "w").write("\\n".join(path + " " + data.hex() for path, data in environments()))
elif sys.argv[1] == "save":
    open("/tmp/agents.json", "w").write(json.dumps(agents()))
elif sys.argv[1] == "post":
    print(call("", sys.argv[2]))
else:
    said = call(sys.argv[2])
    print(said) if len(sys.argv) < 4 else open(sys.argv[3], "w").write(said)
"""


def write_model_task(root: Path, name: str, **more: Any) -> Path:
    """A task without a network, with the program in its image. more: as in `agent_world.write_task`."""
    task = write_task(root, name, build="COPY ask.py /opt/\n", **more)
    (task / "environment" / "ask.py").write_text(ASK)
    return task


def policy(endpoint: ScriptedModel, **more: Any) -> AgentSpec:
    """The policy agent with the key. more: fields of its `AgentSpec`."""
    given = {"model": f"openai/{MODEL}", "base_url": endpoint.openai_base_url, "env": {"POLICY_API_KEY": KEY}}
    return AgentSpec(name="policy", **(given | more))


def runs(command: str, text: str = "I will run it.", **more: Any) -> Json:
    """A reply that runs a command."""
    return {"text": text, "tools": [{"tool": "shell", "arguments": {"command": command}}], "usage": USAGE, **more}


def says(text: str = "Done.", **more: Any) -> Json:
    return {"text": text, "usage": USAGE, **more}


def conversation(*replies: Json) -> Json:
    """A script in which the place in a conversation decides: many rollouts may follow it at once."""
    return {"follow": "conversation", "replies": list(replies)}


SOLVED = conversation(runs("echo 42 > answer"), says())
"""What solves a task."""


def asked_of(request: ModelRequest, step: str) -> bool:
    return f"Do {step}." in request.text


@dataclass(frozen=True)
class Call:
    """A call as the record has it."""

    request: Json
    response: Json

    @property
    def where(self) -> tuple[str, str, int]:
        """Node, role and turn."""
        return self.request["node"], self.request["role"], self.request["turn"]


def calls_of(seen: Seen) -> list[Call]:
    """All calls of a rollout in the order of their requests; each must have its response."""
    return calls_in(seen.paths.model_calls)


def calls_in(record: Path) -> list[Call]:
    lines = read_journal(record)
    answers = {line["id"]: line for line in lines if line["type"] == "response"}
    return [Call(line, answers[line["id"]]) for line in lines if line["type"] == "request"]


def main_calls(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if not call.request["side"] and call.request["api"] != "other"]


def price_of(calls: Sequence[Call]) -> float:
    """What calls cost by the table of prices."""
    return sum(cost(MODEL, CallUsage.model_validate(call.response["usage"])) or 0.0 for call in calls)
