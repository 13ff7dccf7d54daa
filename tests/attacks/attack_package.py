"""The package of attacks, as its metadata tells of it, and jobs of it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout import RolloutResult
from benchflow.contracts.task import Task
from benchflow.jobs import plan_job, submit
from benchflow.tasks import load_task

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "benchmarks" / "attacks"
AGENTS = PACKAGE / "agents"

ELSEWHERE = ("clean-room", "engine")
"""What stops attacks and is no item of hardening."""


@dataclass(frozen=True)
class Attack:
    """A task of the package. stopped_by: any one of these does, nothing does where it is empty."""

    directory: Path
    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def is_honest(self) -> bool:
        return bool(self.task.metadata["family"] == "honest")

    @property
    def is_slow(self) -> bool:
        return bool(self.task.metadata.get("slow"))

    @property
    def stopped_by(self) -> list[str]:
        return list(self.task.metadata.get("stopped_by", []))

    @property
    def items(self) -> list[str]:
        """The items of hardening that stop it."""
        return [item for item in self.stopped_by if item not in ELSEWHERE]

    def is_stopped(self, verify_in: str | None) -> bool:
        """Whether it is, where verifiers run as a job says."""
        return bool(self.stopped_by) and (verify_in == "separate" or self.stopped_by != ["clean-room"])


ALL = {path.name: Attack(path, load_task(path)) for path in sorted((PACKAGE / "tasks").iterdir())}
HONEST = [name for name, one in ALL.items() if one.is_honest]
ATTACKS = [name for name, one in ALL.items() if not one.is_honest]
QUICK = [name for name in ATTACKS if not ALL[name].is_slow]


def run(paths: list[Path], jobs_dir: Path, **options: Any) -> dict[str, RolloutResult]:
    """The results of a job of the package's own agent, by task."""
    given = {"paths": paths, "jobs_dir": jobs_dir, "agents": ["attacker"], "sandbox": "docker", "concurrency": 4}
    config = JobConfig.model_validate(given | options)

    async def finished() -> list[RolloutResult]:
        job = await submit(plan_job(config))
        await job.wait()
        results = job.results()
        assert len(results) == job.spec.total
        return results

    return {result.task_name: result for result in asyncio.run(finished())}


def with_hardening(attack: Attack, root: Path, name: str, **items: bool) -> Path:
    """A copy of the task, under a name, with these items of hardening switched on or off."""
    copy = root / name
    shutil.copytree(attack.directory, copy)
    file = copy / "task.toml"
    document = tomlkit.parse(file.read_text())
    document["verifier"]["hardening"] = items
    file.write_text(tomlkit.dumps(document))
    return copy
