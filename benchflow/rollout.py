"""One rollout from Python: `Rollout`. The same engine as the command line, a job of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.config_file import validated
from benchflow.contracts.branch import BranchConfig
from benchflow.contracts.config import RolloutConfig
from benchflow.contracts.rollback import Restored
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import ConfigError, NotRestorableError, RolloutTerminatedError
from benchflow.jobs import Job, JobPlan, plan_job, submit
from benchflow.jobs.questions import AskHandler, wait_answering
from benchflow.jobs.rollback import put_back
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
        """The job's name: the one given, else a new one.

        A rollout of the same name and configuration is found again, not repeated.
        """
        return self._plan.name

    async def branch(
        self, n: int, *, at: int = 0, on_ask_user: AskHandler | None = None, **options: Any
    ) -> RolloutResult:
        """Run, and have n children go on from where `at` steps are done; the result's reward is V(s), made of theirs.

        options: fields of `BranchConfig` but for the policy, as `children=[ChildSpec(prompt=…), …]` or
        `aggregate="max"`. on_ask_user: as of `run`. `load_tree(result.directory)` has the children. Raises as `run`
        does, and `ConfigError` for what cannot be, or where the configuration branches already.
        """
        if self.config.branch is not None:
            raise ConfigError(
                "this rollout branches as its configuration says",
                key="branch",
                remedy="use run(), or leave it out there",
            )
        wanted = validated(BranchConfig, {**options, "policy": {"kind": "after_steps", "steps": (at,), "n": n}}, {})
        branching = self.config.model_copy(update={"branch": wanted, "job_name": self.name})
        self._plan = plan_job(self._asking(branching, on_ask_user).lower())
        return await self._run(on_ask_user)

    async def restore(self, node: str) -> Restored:
        """Put the world back to a node that this rollout has come by, while `run` waits for it, and go on from there.

        What came of that state is undone: `result.rollbacks` tells of it. Returns once the world is as it was. Raises
        `NotRestorableError` for a node of which no checkpoint is kept, and where the rollout does not run. One that has
        ended is rolled back by `bench rollout rollback`, if it was run with `keep="checkpoints"`.
        """
        if self._job is None:
            raise NotRestorableError("the rollout does not run", key="node", remedy="await run() in a task beside this")
        return await put_back(self._job.engine.client, self._job.spec.rollout_id(self._job.id, 0), node)

    async def run(self, *, on_ask_user: AskHandler | None = None) -> RolloutResult:
        """Run to the end and return the scored result, trajectory included; of one that branched, its own up to there.

        on_ask_user: is asked each question of the agent, and of those of children (`UserQuestion`), once, and answers
        with the id of an option, a text or table for a form, an `Answer`, or None, which refuses; it may be async. What
        nobody has answered is asked again where the rollout is run again.

        A rollout that fails does not raise: `result.error` says how, `result.rewards` is None if nothing was
        measured. Raises `StackError`, `StoreError`, `SandboxUnavailableError` when it could not be started;
        `AskUserError` for a handler that fails, whom the agent still waits for.
        """
        asking = self._asking(self.config, on_ask_user)
        if asking is not self.config:
            self._plan = plan_job(asking.lower())
        return await self._run(on_ask_user)

    def _asking(self, config: RolloutConfig, handler: AskHandler | None) -> RolloutConfig:
        """The configuration with agents that ask, where somebody answers."""
        if handler is None or config.permissions == "ask":
            return config
        if "permissions" in config.model_fields_set:
            raise ConfigError(
                f"nobody would be asked: the configuration says permissions={config.permissions!r}",
                key="permissions",
                remedy="write permissions='ask' there, or leave it out",
            )
        return config.model_copy(update={"permissions": "ask", "job_name": self.name})

    async def _run(self, handler: AskHandler | None) -> RolloutResult:
        self._job = job = await submit(self._plan)
        if handler is None:
            await job.wait()
        else:
            await wait_answering(job, job.spec.rollout_id(job.id, 0), handler)
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
