"""A job with one rollout that has told something, for what shows a trajectory: no engine knows of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.cli.chosen import choose
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import AgentSpec, JobSpec, TaskRef
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.trajectories.journal import append_node

PACK = ArtifactRef(uri="file:///x", sha256="0" * 64, size=0)
Line = dict[str, Any]


def make_job(jobs: Path, *tasks: str, repeats: int = 1) -> None:
    """The directory of a job `j`, of which nothing has run."""
    made = [TaskRef(name=task, digest="d", pack=PACK) for task in tasks]
    spec = JobSpec(name="j", tasks=made, agents=[AgentSpec(name="demo")], repeats=repeats)
    (jobs / "j").mkdir(parents=True)
    JobPaths(jobs / "j").config.write_text(spec.model_dump_json())


def one_rollout(jobs: Path, *lines: Line) -> RolloutPaths:
    """A job with one rollout that has told these lines."""
    make_job(jobs, "greet")
    paths = choose("j", jobs).paths
    append_node(paths.trajectory, "n1", "agent", list(lines))
    return paths


def end(paths: RolloutPaths, **fields: Any) -> None:
    now = datetime.now(UTC)
    told = {"rollout_name": paths.root.name, "task_name": "greet", "job_name": "j", "workflow_id": "w"}
    told |= {"task_digest": "d", "agent": "demo", "status": "passed", "rewards": {"reward": 1.0}}
    result = RolloutResult.model_validate(told | {"started_at": now, "finished_at": now} | fields)
    part = paths.root / ".result"
    part.write_text(result.model_dump_json())
    part.replace(paths.result)


def say(text: str) -> Line:
    return {"type": "agent_message", "text": text}
