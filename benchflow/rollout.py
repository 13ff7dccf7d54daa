"""One rollout from Python: `Rollout`. The same engine as the command line, a job of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.config_file import validated
from benchflow.contracts.branch import BranchConfig
from benchflow.contracts.config import RolloutConfig
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import ConfigError, RolloutTerminatedError
from benchflow.jobs import Job, JobPlan, plan_job, submit
from benchflow.paths import RolloutPaths
from benchflow.trajectories.journal import read_journal


class Rollout:
    """One agent run on one task. `await Rollout.create(config)`, then `await rollout.run()`."""

    def __init__(self, config: RolloutConfig, plan: JobPlan) -> None:
        self.config = config
        self._plan = plan
        self._job: Job | None = None

    @classmethod
    async def create(cls, config: RolloutConfig) -> Rollout:
        """Read and check everything; nothing is started. Raises the typed error of what is wrong."""
        return cls(config, plan_job(config.lower()))

    @property
    def name(self) -> str:
        """The job's name; a rollout of the same name and configuration is found again, not repeated."""
        return self._plan.name

    async def branch(self, n: int, *, at: int = 0, **options: Any) -> RolloutResult:
        """Run, and have n children go on from where `at` steps are done; the result's reward is V(s), made of theirs.

        options: fields of `BranchConfig` but for the policy, as `children=[ChildSpec(prompt=…), …]` or
        `aggregate="max"`. `load_tree(result.directory)` has the children. Raises as `run` does, and `ConfigError` for
        what cannot be, or where the configuration branches already.
        """
        if self.config.branch is not None:
            raise ConfigError(
                "this rollout branches as its configuration says",
                key="branch",
                remedy="use run(), or leave it out there",
            )
        wanted = validated(BranchConfig, {**options, "policy": {"kind": "after_steps", "steps": (at,), "n": n}}, {})
        branching = self.config.model_copy(update={"branch": wanted, "job_name": self.name})
        self._plan = plan_job(branching.lower())
        return await self.run()

    async def run(self) -> RolloutResult:
        """Run to the end and return the scored result, trajectory included; of one that branched, its own up to there.

        A rollout that fails does not raise: `result.error` says how, `result.rewards` is None if nothing was
        measured. Raises `StackError`, `StoreError`, `SandboxUnavailableError` when it could not be started.
        """
        self._job = await submit(self._plan)
        await self._job.wait()
        results = self._job.results()
        if not results:
            raise RolloutTerminatedError(
                "the rollout left no result", file=str(self._plan.directory.root), remedy="bench job show"
            )
        return with_trajectory(results[0])


def with_trajectory(result: RolloutResult) -> RolloutResult:
    """The result with the lines of its `acp_trajectory.jsonl`."""
    if result.directory is None:
        return result
    lines = read_journal(RolloutPaths(Path(result.directory)).trajectory)
    return result.model_copy(update={"trajectory": lines})
