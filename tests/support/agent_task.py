"""A task for the demo agent, whose script lies in the image, and an agent of a user's own that starts it there.

The agent writes down what it receives among the logs that are collected, and the trajectory and the raw journals say
what was heard of it: together they show what was said twice, or not at all.
"""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from support.counted_task import BASE_IMAGE

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

# The demo agent, which thinks for some seconds before it answers these methods.
_AGENT = """\
import json, sys, time
sys.path.insert(0, "/opt")
import demo_agent

slow = json.load(open("/opt/slow.json"))

class SlowAgent(demo_agent.Agent):
    def answer(self, number, method, params):
        time.sleep(slow.get(method, 0))
        super().answer(number, method, params)

demo_agent.Agent = SlowAgent
demo_agent.main()
"""

_TEST = """#!/bin/sh
if [ "$(cat /app/turns)" = turn ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def declare_agent(directory: Path) -> None:
    """Put the agent into a directory of agents."""
    directory.mkdir(parents=True)
    (directory / f"{AGENT}.toml").write_text(_RECORD)


def long_turn(seconds: float, updates: int, asks: int = 2) -> list[dict[str, Any]]:
    """A turn of so many updates, with so many permission requests among them, in equal distances."""
    actions: list[dict[str, Any]] = [{"run": "echo turn >> turns", "silent": True}]
    rounds = updates // (asks + 1)
    for part in range(asks + 1):
        say = {"say": f"{part}:{{i}}"}
        actions.append({"repeat": rounds, "do": [say], "pace": seconds / updates})
        if part < asks:
            options = [["no", "reject_once"], ["yes", "allow_once"]]
            actions.append({"ask": f"question {part}", "options": options, "record": "answers"})
    return actions


def texts_of(updates: int, asks: int = 2) -> list[str]:
    """What is said in such a turn."""
    rounds = updates // (asks + 1)
    return [f"{part}:{number}" for part in range(asks + 1) for number in range(rounds)]


def write_agent_task(root: Path, name: str, turn: list[dict[str, Any]], slow: dict[str, float] | None = None) -> Path:
    """Write the task. slow: seconds that the agent takes before it answers a method."""
    task = root / name
    environment = task / "environment"
    for directory in (environment, task / "tests"):
        directory.mkdir(parents=True)
    shutil.copy(demo_agent.__file__, environment / "demo_agent.py")
    (environment / "agent.py").write_text(_AGENT)
    (environment / "script.json").write_text(json.dumps({"turns": [turn], "log": f"/logs/agent/{_LOG}"}))
    (environment / "slow.json").write_text(json.dumps(slow or {}))
    lines = [f"FROM {BASE_IMAGE}", f"RUN echo {MARK}-{name} > /mark", "WORKDIR /app"]
    lines += [f"COPY {file} /opt/{file}" for file in ("demo_agent.py", "agent.py", "script.json", "slow.json")]
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

    def longest_silence(self, since: float, until: float) -> tuple[float, float] | None:
        """Between two lines of the trajectory, of those silences that contain `since` or end before `until`."""
        lines = [datetime.fromisoformat(event["ts"]).timestamp() for event in self.events]
        silences = [it for it in itertools.pairwise(lines) if it[1] > since and (it[0] <= since or it[1] <= until)]
        return max(silences, key=lambda silence: silence[1] - silence[0], default=None)
