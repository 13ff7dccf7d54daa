"""Eight attempts that share how they begin, run in two ways: as one tree, and as eight rollouts of their own.

The task is a talk of so many turns; in each the agent asks its model for a command, runs it, and is told that it is
done. Either way as many go on at a time. The model is scripted, and each call takes the same time, however many ask at
once. Tokens are those of all calls that the gateway recorded, also of what agents ask on the side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_stack import measured_stack

from benchflow.contracts.branch import BranchConfig, Group
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.operator_options import CAPACITY_VARIABLE
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import plan_job, submit
from benchflow.paths import RolloutPaths
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

CHILDREN = 8
INPUT, INPUT_PER_REPLY, OUTPUT = 1000, 250, 100
"""Tokens of a call: of its input, at first and for each reply before it, and of its output."""


@dataclass(frozen=True)
class Sizes:
    """Options of the measurement.

    agents: names of `AGENTS`. prefixes: in turns. concurrency: rollouts, or children, at a time. latency: seconds of
    each call of the model. runs: of each way, of which the median pair is told.
    """

    agents: Sequence[str] = ("policy", "claude-agent-acp", "codex-acp")
    prefixes: Sequence[int] = (1, 2, 5, 20)
    concurrency: int = 4
    latency: float = 1.0
    runs: int = 1


@dataclass(frozen=True)
class Measured:
    """An agent whose rollouts are measured. variable: what holds its key."""

    name: str
    provider: str
    variable: str

    def spec(self, model: ScriptedModel) -> AgentSpec:
        url = model.base_url if self.provider == "anthropic" else model.openai_base_url
        return AgentSpec(name=self.name, model=f"{self.provider}/scripted", base_url=url, env={self.variable: "a-key"})


AGENTS = {
    agent.name: agent
    for agent in (
        Measured("policy", "openai", "POLICY_API_KEY"),
        Measured("claude-agent-acp", "anthropic", "ANTHROPIC_API_KEY"),
        Measured("codex-acp", "openai", "OPENAI_API_KEY"),
        Measured("opencode", "openai", "OPENAI_API_KEY"),
    )
}


def write_talk(root: Path, agent: str, turns: int, image: str) -> Path:
    """A task whose agent is told so many things, and has to have done them all."""
    task = root / f"talk-{agent}-{turns}"
    for directory in ("environment", "tests"):
        (task / directory).mkdir(parents=True)
    (task / "environment" / "Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\n")
    told = "".join(f'      - {{role: solver, prompt: "Do part {number}."}}\n' for number in range(turns))
    head = f"agents:\n  roles:\n    solver: {{agent: {agent}}}\nscenes:\n  - name: work\n    turns:\n{told}"
    (task / "task.md").write_text(f"---\nenvironment: {{network_mode: no-network}}\n{head}---\nDo all parts.\n")
    test = task / "tests" / "test.sh"
    done = f"[ $(wc -l < /app/done) = {turns} ]"
    test.write_text(f"#!/bin/sh\n{done} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n")
    test.chmod(0o755)
    return task


def scripted(latency: float) -> Any:
    """A model that has each part of the talk done by one command, after so many seconds a call."""

    def answer(request: ModelRequest) -> dict[str, Any]:
        usage = {"input": INPUT + INPUT_PER_REPLY * request.turn, "output": OUTPUT}
        common: dict[str, Any] = {"usage": usage, "delay": latency}
        if request.tool_results:
            return {"text": "It is done."} | common
        command = {"tool": "shell", "arguments": {"command": "echo part >> /app/done"}}
        return {"text": "I will do it.", "tools": [command]} | common

    return answer


def measure_groups(sandbox: str, sizes: Sizes, image: str) -> dict[str, dict[str, Any]]:
    """By agent and by turns of the shared prefix; after one round that warms up, and fetches the agents."""
    # No way waits for room on the host.
    with (
        measured_stack({CAPACITY_VARIABLE: str(2 * CHILDREN)}) as made,
        ScriptedModel(scripted(sizes.latency)) as model,
    ):
        found: dict[str, dict[str, Any]] = {}
        for name in sizes.agents:
            jobs = _Jobs(sandbox, AGENTS[name].spec(model), sizes.concurrency, made.root / "jobs" / name)
            tasks = {length: write_talk(made.root, name, length + 1, image) for length in sizes.prefixes}
            first = sizes.prefixes[0]
            asyncio.run(jobs.tree(tasks[first], first))
            found[name] = {str(length): jobs.compare(tasks[length], length, sizes.runs) for length in sizes.prefixes}
    return found


class _Jobs:
    """Jobs of one agent, each measured from its submission to its end."""

    def __init__(self, sandbox: str, agent: AgentSpec, concurrency: int, directory: Path) -> None:
        self._common: dict[str, Any] = {"sandbox": sandbox, "agents": [agent], "concurrency": concurrency}
        self._agent = agent.name
        self._directory = directory
        self._count = 0

    def compare(self, task: Path, length: int, runs: int) -> dict[str, Any]:
        pairs = []
        for number in range(runs):
            # Either way is first in turn.
            ways = [self.tree(task, length), self.independent(task)]
            done = {at: asyncio.run(ways[at]) for at in ((0, 1) if number % 2 == 0 else (1, 0))}
            pairs.append((done[0], done[1]))
        pairs.sort(key=lambda pair: pair[0][0] - pair[1][0])
        (tree_s, tree_tokens), (independent_s, independent_tokens) = pairs[len(pairs) // 2]
        return {
            "tree_s": round(tree_s, 2),
            "independent_s": round(independent_s, 2),
            "tree_model_tokens": tree_tokens,
            "independent_model_tokens": independent_tokens,
            "ahead": tree_s < independent_s and tree_tokens < independent_tokens,
        }

    async def tree(self, task: Path, length: int) -> tuple[float, int]:
        """Seconds and tokens of one rollout that branches when so many turns are done."""
        at_a_time = self._common["concurrency"]
        branch = BranchConfig(policy=Group(n=CHILDREN, at=length), concurrency=at_a_time, min_session_rung="load")
        return await self._run(task, branch=branch)

    async def independent(self, task: Path) -> tuple[float, int]:
        return await self._run(task, repeats=CHILDREN)

    async def _run(self, task: Path, **options: Any) -> tuple[float, int]:
        self._count += 1
        given = self._common | {
            "paths": [task],
            "jobs_dir": self._directory,
            "job_name": f"{self._agent}-{self._count}",
        }
        began = time.perf_counter()
        job = await submit(plan_job(JobConfig(**(given | options))))
        await job.wait()
        seconds = time.perf_counter() - began
        results = job.results()
        for result in results:
            if result.error is not None or result.reward != 1.0:
                raise RuntimeError(
                    f"{result.rollout_name} did not do what it was told: {result.error or result.reward}"
                )
        return seconds, sum(_tokens(result) for result in results)


def _tokens(result: RolloutResult) -> int:
    """Of all calls below a rollout's directory: its own, and its children's."""
    assert result.directory is not None
    record = RolloutPaths(Path(result.directory)).model_calls
    name = record.relative_to(result.directory)
    tokens = 0
    for file in Path(result.directory).rglob(str(name)):
        lines = read_journal(file)
        replayed = {line["id"] for line in lines if line["type"] == "request" and line["source"] == "replay"}
        for line in lines:
            if line["type"] == "response" and line["id"] not in replayed and line["usage"]:
                tokens += line["usage"]["input_tokens"] + line["usage"]["output_tokens"]
    return tokens
