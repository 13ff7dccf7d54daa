"""Real agents that do the work of the oracles of the quickstart and the office are not said to have tampered.

Each of five agents does some of the tasks; which, moves on with `BENCHFLOW_TEST_ROUND`. The model alone is scripted: it
has the agent run what the oracle would.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.made_once import made_once
from support.paths import ROOT
from support.real_agents import DONE, Asked

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import plan_job, submit
from benchflow.tasks import load_task
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

pytestmark = [pytest.mark.agents, pytest.mark.local, pytest.mark.long]

CHAT: dict[str, Any] = {"api": "openai-chat", "provider": "openai", "variable": "OPENAI_API_KEY"}
AGENTS = [
    Asked("opencode", **CHAT, says="opencode/"),
    Asked("claude-agent-acp", "anthropic-messages", "anthropic", "ANTHROPIC_API_KEY", says="claude-cli/"),
    Asked("codex-acp", "openai-responses", "openai", "OPENAI_API_KEY", says="benchflow/"),
    Asked("gemini", "gemini", "google", "GEMINI_API_KEY", says="GeminiCLI-acp/"),
    Asked("pi-acp", **CHAT, says="pi ("),
]
PACKAGES = [ROOT / "benchmarks" / "quickstart" / "tasks", ROOT / "benchmarks" / "office" / "tasks"]
ROUND = int(os.environ.get("BENCHFLOW_TEST_ROUND", "0"))


def solution_of(task: Path) -> Path | None:
    """Return the directory of a task's only oracle; None for a task of several steps."""
    found = [task / name for name in ("solution", "oracle") if (task / name / "solve.sh").is_file()]
    return found[0] if found else None


TASKS = [task for package in PACKAGES for task in sorted(package.iterdir()) if solution_of(task) is not None]


def agents_for(task: Path) -> list[Asked]:
    """Return the agents that can do a task: one of them does not reach the office's services by MCP."""
    return [asked for asked in AGENTS if "office" not in task.parts or asked.agent != "pi-acp"]


PAIRS = [(able[(place + ROUND) % len(able)], task) for place, task in enumerate(TASKS) if (able := agents_for(task))]


def work_of(solution: Path) -> str:
    """Return a command that does what an oracle does."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        archive.add(solution, "work")
    text = base64.b64encode(packed.getvalue()).decode()
    return f"echo {text} | base64 -d | tar -xJ -C /tmp && bash /tmp/work/solve.sh"


class Model:
    """Has an agent do what the oracle of its task does."""

    def __init__(self, tasks: list[Path]) -> None:
        self._work: dict[str, str] = {}
        for task in tasks:
            solution = solution_of(task)
            assert solution is not None
            self._work[load_task(task).instruction.strip()] = work_of(solution)

    def answer(self, request: ModelRequest) -> Mapping[str, Any] | str | None:
        if request.turn == 0:
            found = [work for asked, work in self._work.items() if asked in request.text]
            return {"text": "I will do it.", "tools": [{"tool": "shell", "arguments": {"command": found[0]}}]}
        return DONE if request.turn == 1 else None


@made_once()
def found(root: Path) -> dict[str, RolloutResult]:
    """Return the result of each task."""

    async def results() -> list[RolloutResult]:
        done = []
        for asked in AGENTS:
            tasks = [task for agent, task in PAIRS if agent is asked]
            with ScriptedModel(Model(tasks).answer) as model:
                config = JobConfig(
                    paths=tasks,
                    jobs_dir=root / "jobs",
                    job_name=asked.agent,
                    agents=[asked.spec(model)],
                    sandbox="local",
                    concurrency=2,
                    sandbox_setup_timeout=300,
                )
                job = await submit(plan_job(config))
                await job.wait()
                done += job.results()
        return done

    return {result.task_name: result for result in asyncio.run(results())}


@pytest.mark.parametrize(("asked", "task"), PAIRS, ids=lambda value: getattr(value, "agent", None) or value.name)
def test_honest_work_of_a_real_agent_is_no_tampering(found: dict[str, RolloutResult], asked: Asked, task: Path) -> None:
    [result] = [result for name, result in found.items() if name.endswith(task.name)]
    assert (result.error, result.verifier_error, result.reward) == (None, None, 1.0)
    assert [finding for finding in result.findings if finding.weight == "tampering"] == []
