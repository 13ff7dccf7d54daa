"""A task for the demo agent, whose script lies in the image, and an agent of a user's own that starts it there.

The agent writes down what it receives among the logs that are collected, and the trajectory and the raw journals say
what was heard of it: together they show what was said twice, or not at all.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.counted_task import BASE_IMAGE, enough

from benchflow.paths import RolloutPaths
from benchflow.testing import demo_agent
from benchflow.trajectories.journal import read_journal

AGENT = "demo"
MARK = f"agent-task-{secrets.token_hex(4)}"
"""In a step of the image of every such task that this process writes."""

_LOG = "received.jsonl"
_RECORD = f"""\
name = "{AGENT}"
description = "Does what its script says."
protocol = "acp"
launch = ["python3", "/opt/agent.py", "/opt/script.json"]

[session]
rung = "load"
"""

# The demo agent, which answers these methods only when it is let go.
_AGENT = """\
import json, os, sys, time
sys.path.insert(0, "/opt")
import demo_agent

held = json.load(open("/opt/held.json"))

class HeldAgent(demo_agent.Agent):
    def answer(self, number, method, params):
        while method in held and not os.path.exists(held[method]):
            time.sleep(0.05)
        super().answer(number, method, params)

demo_agent.Agent = HeldAgent
demo_agent.main()
"""

_TEST = """#!/bin/sh
if [ "$(cat /app/turns)" = turn ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def declare_agent(directory: Path) -> None:
    """Put the agent into a directory of agents."""
    directory.mkdir(parents=True)
    (directory / f"{AGENT}.toml").write_text(_RECORD)


def step_of(what: str | int) -> str:
    """Return the step of an agent that is held in a method of this name, or at the end of this part of its turn."""
    return f"/opt/{str(what).replace('/', '-')}"


def long_turn(seconds: float, updates: int, asks: int = 2, *, held: bool = False) -> list[dict[str, Any]]:
    """Return a turn of so many updates, with so many permission requests among them, in equal distances.

    held: whether each part waits to be let go before the request that ends it.
    """
    actions: list[dict[str, Any]] = [{"run": "echo turn >> turns", "silent": True}]
    rounds = updates // (asks + 1)
    for part in range(asks + 1):
        say = {"say": f"{part}:{{i}}"}
        actions.append({"repeat": rounds, "do": [say], "pace": seconds / updates})
        if part < asks:
            actions += [{"wait_for": enough(step_of(part))}] if held else []
            options = [["no", "reject_once"], ["yes", "allow_once"]]
            actions.append({"ask": f"question {part}", "options": options, "record": "answers"})
    return actions


def texts_of(updates: int, asks: int = 2) -> list[str]:
    """What is said in such a turn."""
    rounds = updates // (asks + 1)
    return [f"{part}:{number}" for part in range(asks + 1) for number in range(rounds)]


def write_agent_task(root: Path, name: str, turn: list[dict[str, Any]], held: Sequence[str] = ()) -> Path:
    """Write the task. held: methods that the agent answers when it is let go."""
    task = root / name
    environment = task / "environment"
    for directory in (environment, task / "tests"):
        directory.mkdir(parents=True)
    shutil.copy(demo_agent.__file__, environment / "demo_agent.py")
    (environment / "agent.py").write_text(_AGENT)
    (environment / "script.json").write_text(json.dumps({"turns": [turn], "log": f"/logs/agent/{_LOG}"}))
    (environment / "held.json").write_text(json.dumps({method: enough(step_of(method)) for method in held}))
    lines = [f"FROM {BASE_IMAGE}", f"RUN echo {MARK}-{name} > /mark", "WORKDIR /app"]
    lines += [f"COPY {file} /opt/{file}" for file in ("demo_agent.py", "agent.py", "script.json", "held.json")]
    (environment / "Dockerfile").write_text("\n".join(lines) + "\n")
    (task / "task.toml").write_text("[environment]\n")
    (task / "instruction.md").write_text("Do what your script says.\n")
    test = task / "tests" / "test.sh"
    test.write_text(_TEST)
    test.chmod(0o755)
    return task


@dataclass
class Told:
    """What is on record of a rollout's one turn."""

    paths: RolloutPaths

    def __post_init__(self) -> None:
        self.events = read_journal(self.paths.trajectory)

    @property
    def texts(self) -> list[str]:
        return [event["text"] for event in self.events if event["type"] == "agent_message"]

    @property
    def kinds(self) -> Counter[str]:
        return Counter(event["type"] for event in self.events)

    @property
    def received(self) -> list[dict[str, Any]]:
        """All messages that the agent got, as it says itself."""
        lines = (self.paths.agent / _LOG).read_text().splitlines()
        return [json.loads(json.loads(line)["line"]) for line in lines]

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.received if "method" in message]

    @property
    def answers(self) -> list[int]:
        """To which of the agent's requests it was given an answer, in this order."""
        return [message["id"] for message in self.received if "method" not in message]
