"""Jobs of the demo agent, through the real stack: its tasks, its declaration, and what is left of its rollouts.

A task is a script for the agent, which its Dockerfile copies into the image; the agent is declared as a user's own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import docker
import pytest
import tomlkit

from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollout_records import AgentSession, Failure, RolloutResult
from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.stack import find_running
from benchflow.temporal import connect, make_stack_target
from benchflow.testing import demo_agent
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

T = TypeVar("T")
Json = dict[str, Any]

BASE_IMAGE = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
LAUNCH = ["python3", "/opt/demo_agent.py", "/opt/script.json"]
WORKDIR = "/app"

LOCAL = pytest.param("local", marks=pytest.mark.local)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)
LONG_IN_DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long])

SOLVE = {"write": "answer", "content": "42\n"}
"""The action that a task's verifier rewards, unless the task says otherwise."""

TEST = f"[ -e {WORKDIR}/answer ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


def declare(directory: Path, name: str = "demo", **more: Any) -> None:
    """Write the user's own file of an agent that is the demo agent. more: fields of its record."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "description": "As scripted.", "protocol": "acp", "launch": LAUNCH} | more
    (directory / f"{name}.toml").write_text(tomlkit.dumps(record))


def write_task(
    root: Path,
    name: str,
    *turns: Any,
    script: Json | None = None,
    config: str = "",
    environment: str = "",
    test: str = TEST,
    build: str = "",
) -> Path:
    """A task in which the agent does what the turns say.

    script: its other keys. config: of `task.toml`; environment: lines of its `[environment]` table; build: further
    lines of the Dockerfile.
    """
    task = root / name
    for directory in ("environment", "tests"):
        (task / directory).mkdir(parents=True)
    (task / "environment" / "demo_agent.py").write_bytes(Path(demo_agent.__file__).read_bytes())
    (task / "environment" / "script.json").write_text(json.dumps({"turns": list(turns)} | (script or {})))
    copy = "COPY demo_agent.py script.json /opt/\n"
    (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR {WORKDIR}\n{copy}{build}")
    if "network_mode" not in environment:
        environment = f'network_mode = "no-network"\n{environment}'
    (task / "task.toml").write_text(f"{config}\n[environment]\n{environment}\n")
    (task / "instruction.md").write_text("Make the answer.\n")
    _write_script(task / "tests" / "test.sh", test)
    return task


def write_step(task: Path, name: str, test: str = TEST) -> None:
    """The files of one of the task's `[[steps]]`."""
    step = task / "steps" / name
    step.mkdir(parents=True)
    (step / "instruction.md").write_text(f"Do {name}.\n")
    _write_script(step / "tests" / "test.sh", test)


def _write_script(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}")
    file.chmod(0o755)


@dataclass(frozen=True)
class Seen:
    """A rollout that is over, as its files tell of it."""

    result: RolloutResult

    @property
    def paths(self) -> RolloutPaths:
        return RolloutPaths(Path(str(self.result.directory)))

    @property
    def error(self) -> Failure:
        assert self.result.error is not None, self.result
        return self.result.error

    @property
    def lines(self) -> list[Json]:
        return read_journal(self.paths.trajectory)

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.of("agent_message")]

    @property
    def session(self) -> AgentSession:
        (session,) = self.result.sessions
        return session

    def of(self, kind: str) -> list[Json]:
        return [line for line in self.lines if line["type"] == kind]

    def journal(self, name: str, session: str = "0.0") -> str:
        """What was kept of a session. name: `in.jsonl`, `out.jsonl`, `err.log` or `exit.json`."""
        return (self.paths.sessions / session / name).read_text(errors="replace")

    def sent(self, session: str = "0.0") -> list[Json]:
        """The messages that the agent got."""
        return [json.loads(line) for line in self.journal("in.jsonl", session).splitlines()]

    def made(self, name: str) -> str:
        """A file that the agent, or the verifier, left among the artifacts."""
        return (self.paths.artifacts / name).read_text()

    def recorded(self, name: str = "record") -> list[Any]:
        """The results of the actions that the script recorded below /logs/artifacts."""
        return [json.loads(line)["result"] for line in self.made(name).splitlines()]


RECORD = "/logs/artifacts/record"
"""Where a script records what `Seen.recorded` finds."""


def job_config(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> JobConfig:
    """A job of the demo agent in local sandboxes, unless the options, fields of `JobConfig`, say otherwise.

    Its models are not asked before: many tests count their calls.
    """
    given = {"paths": list(tasks), "jobs_dir": jobs_dir, "agents": ["demo"], "sandbox": "local", "preflight": False}
    return JobConfig.model_validate(given | options)


async def submit_tasks(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> Job:
    return await submit(plan_job(job_config(tasks, jobs_dir, **options)))


async def finished(job: Job) -> dict[str, Seen]:
    """The rollouts of a job that has come to its end, by their task's name."""
    await job.wait()
    return {result.task_name: Seen(result) for result in job.results()}


def run_tasks(tasks: Sequence[Path], jobs_dir: Path, **options: Any) -> dict[str, Seen]:
    async def run() -> dict[str, Seen]:
        return await finished(await submit_tasks(tasks, jobs_dir, **options))

    return asyncio.run(run())


def assert_nothing_is_left(*rollouts: Seen) -> None:
    """Neither a sandbox of theirs nor what their agents said is there any more, but for what was kept of it."""
    paths = StatePaths.default()
    for seen in rollouts:
        name = seen.result.sandbox["name"]
        assert not (paths.sessions / name).exists()
        assert not (paths.root / "local" / "sandboxes" / name).exists()
        assert not (paths.slots / name).exists()
        if seen.result.sandbox["provider"] == "docker":
            client = docker.from_env()
            try:
                assert client.containers.list(all=True, filters={"name": name}) == []
            finally:
                client.close()


async def asked(job: Job, task: str, other_than: str | None = None) -> RolloutProgress:
    """The progress of a task's rollout as soon as its agent waits for an answer to another question than that."""
    rollout = rollout_of(job, task)

    async def waits() -> RolloutProgress | None:
        progress = await job.rollout_progress(rollout)
        if progress is None or progress.question is None or progress.question.id == other_than:
            return None
        return progress

    found = await until(waits, every=0.1)
    assert found is not None
    return found


def index_of(job: Job, task: str) -> int:
    """The number of a task's rollout, in a job of one agent."""
    return [ref.name for ref in job.spec.tasks].index(task)


def rollout_of(job: Job, task: str) -> str:
    """The workflow id of a task's rollout."""
    return job.spec.rollout_id(job.id, index_of(job, task))


async def histories(job: Job) -> dict[str, str]:
    """Every event of every workflow of a job, as JSON, by the workflow's id."""
    record = find_running(StatePaths.default())
    assert record is not None
    client = await connect(make_stack_target(record))
    texts = {}
    for workflow in [job.id, *(job.spec.rollout_id(job.id, index) for index in range(job.spec.total))]:
        texts[workflow] = (await client.get_workflow_handle(workflow).fetch_history()).to_json()
    return texts
