"""Jobs that have been run, laid out as the engine lays them out, without an engine: for tests of what reads them.

The rewards are the test's own choice; tasks are frozen and kept in the store as `bench submit` does it.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.contracts import ids
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import Origin, RolloutSpec
from benchflow.contracts.reward import RewardEvent, VerifyResult
from benchflow.contracts.rollout_records import Failure, RolloutResult, Step, StepOutcome, TurnResult
from benchflow.jobs.job_plan import freeze, plan_job
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.provenance import write_config
from benchflow.results.write import write_json, write_rewards, write_rollout
from benchflow.store import Store
from benchflow.trajectories.journal import append_node, read_journal
from benchflow.trajectories.rollout_tree import build_tree, make_step_node_id

IMAGE = "debian:bookworm-slim"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

SCORE_BY_ANSWER = 'read reward < /app/answer; echo "$reward" > /logs/verifier/reward.txt\n'
"""A verifier whose reward is what the agent has written."""


def write_task(
    root: Path, name: str, *, test: str = SCORE_BY_ANSWER, config: str = "", steps: Sequence[str] = ()
) -> Path:
    """A task that works in /app. config: more lines of its `task.toml`."""
    task = root / name
    (task / "environment").mkdir(parents=True, exist_ok=True)
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    tables = "".join(f'\n[[steps]]\nname = "{step}"\n' for step in steps)
    (task / "task.toml").write_text(f"{config}\n{tables}")
    (task / "instruction.md").write_text("Write the reward that you want.\n")
    write_script(task / "solution" / "solve.sh", "echo 1 > answer\n")
    for directory in [task / "steps" / step for step in steps] or [task]:
        write_script(directory / "tests" / "test.sh", test)
        if steps:
            (directory / "instruction.md").write_text("Go on.\n")
            write_script(directory / "solution" / "solve.sh", "echo 1 > answer\n")
    return task


def write_script(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}")
    file.chmod(0o755)


@dataclass(frozen=True)
class Past:
    """What became of a rollout. rewards: of its steps, by their names, None for the only one. error: that ended it.

    workspace: files that were kept of it, by path below it, after each step; None when it was not kept.
    """

    rewards: Mapping[str | None, float] = field(default_factory=lambda: {None: 1.0})
    workspace: Callable[[float], Mapping[str, str]] | None = None
    error: Failure | None = None


async def store_job(
    tasks: Sequence[Path], jobs_dir: Path, past: Mapping[str, Past] | None = None, *, name: str = "past", **options: Any
) -> Path:
    """The directory of a job that has ended. past: of rollouts, by `task` or `task/repeat`; options: of `JobConfig`."""
    config = {"paths": list(tasks), "jobs_dir": jobs_dir, "job_name": name, "sandbox": "local", "agents": ["oracle"]}
    plan = plan_job(JobConfig.model_validate(config | options))
    spec = await freeze(plan, Store.open())
    job = JobPaths(jobs_dir / name)
    write_config(job, spec)
    job_id = ids.job_id(name, str(jobs_dir))
    for index in range(spec.total):
        one = spec.rollout(job_id, Origin(host_id="here", job_dir=str(job.root)), index, run_id="run")
        became = (past or {}).get(f"{one.task.name}/{one.repeat}") or (past or {}).get(one.task.name) or Past()
        _write_rollout(job.rollout(one.name), one, became)
    return job.root


def _write_rollout(paths: RolloutPaths, spec: RolloutSpec, past: Past) -> None:
    write_json(paths.config, {"run_id": "run", "generation": 0} | spec.model_dump(mode="json"))
    steps = [_write_step(paths, spec, index, step, past) for index, step in enumerate(past.rewards)]
    rewards = [outcome.verify.rewards for outcome in steps if outcome.verify]
    mean = {"reward": sum(each["reward"] for each in rewards) / len(rewards)} if rewards and not past.error else None
    result = RolloutResult(
        rollout_name=spec.name,
        task_name=spec.task.name,
        job_name=spec.job_name,
        workflow_id=spec.id,
        task_digest=spec.task.digest,
        agent=spec.agent.name,
        repeat=spec.repeat,
        status="errored" if mean is None else "passed" if mean["reward"] >= 1 else "failed",
        rewards=mean,
        error=past.error,
        error_category=past.error.category if past.error else None,
        steps=steps,
        started_at=MOMENT,
        finished_at=MOMENT,
        sandbox={"provider": spec.run.sandbox, "workdir": "/app"},
    )
    tree = build_tree(spec.id, steps, read_journal(paths.trajectory))
    prompts = [{"step": name, "role": "agent", "text": "Write the reward that you want."} for name in past.rewards]
    write_rollout(paths, result, tree, prompts)


def _write_step(paths: RolloutPaths, spec: RolloutSpec, index: int, step: str | None, past: Past) -> StepOutcome:
    value = past.rewards[step]
    said = {"type": "agent_message", "text": f"I want {value}."}
    append_node(paths.trajectory, make_step_node_id(index), "agent", [said])
    verifier = paths.verifier_of(step)
    verifier.mkdir(parents=True, exist_ok=True)
    outcome = StepOutcome(
        step=Step(index=index, name=step, agent=spec.agent.name), turn=TurnResult(stop_reason="end_turn", events=1)
    )
    if past.error is not None:
        return outcome
    (verifier / "reward.txt").write_text(f"{value}\n")
    write_rewards(paths, index, [RewardEvent(value=value, source="reward.txt", ts=MOMENT)])
    if past.workspace is not None:
        write_workspace(paths.evidence(step) / "workspace.tar", past.workspace(value))
    return outcome.model_copy(update={"verify": VerifyResult(reward=value)})


def write_workspace(archive: Path, files: Mapping[str, str]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def answer(value: float) -> dict[str, str]:
    """The workspace that `SCORE_BY_ANSWER` scores with this value."""
    return {"answer": f"{value}\n"}


def files_below(directory: Path) -> dict[str, bytes]:
    """Every file of a directory, by path, but for what rescoring adds."""
    found = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.is_file() and "rescored" not in relative.parts:
            found[str(relative)] = path.read_bytes()
    return found


def row_of(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))
