"""`Rollout`: one rollout from Python, on the same engine as the command line, as a job of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.config_file import validate
from benchflow.contracts.branch import BranchConfig
from benchflow.contracts.config import RolloutConfig
from benchflow.contracts.rollback import Restored
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ConfigError, NotRestorableError, RolloutTerminatedError
from benchflow.jobs import Job, JobPlan, plan_job, submit
from benchflow.jobs.question_callback import AskHandler, wait_and_answer
from benchflow.jobs.rollback_request import roll_back_running
from benchflow.paths import RolloutPaths
from benchflow.trajectories.journal import read_journal


class Rollout:
    """One agent run on one task: `await Rollout.create(config)`, then `await rollout.run()`."""

    def __init__(self, config: RolloutConfig, plan: JobPlan) -> None:
        """Make it from a checked plan; use `create`, which makes the plan."""
        self.config = config
        self._plan = plan
        self._job: Job | None = None

    @classmethod
    async def create(cls, config: RolloutConfig) -> Rollout:
        """Read and check everything that the rollout needs; start nothing. Raise the typed error of a problem."""
        return cls(config, plan_job(config.lower()))

    @property
    def name(self) -> str:
        """Return the name of its job: the configured one, else a generated one.

        Running a rollout of the same name and configuration again returns the existing result.
        """
        return self._plan.name

    async def branch(
        self, n: int, *, at: int = 0, on_ask_user: AskHandler | None = None, **options: Any
    ) -> RolloutResult:
        """Run with `n` children that continue after `at` steps; the result's reward is V(s) of that state.

        `load_tree(result.directory)` has the children. Raises as `run` does.

        Args:
            n: Number of children.
            at: Number of steps before the branch.
            on_ask_user: As of `run`.
            options: Fields of `BranchConfig` other than the policy, as `children=[ChildSpec(prompt=…), …]` or
                `aggregate="max"`.

        Raises:
            ConfigError: The branch is not possible, or the configuration branches already.
        """
        if self.config.branch is not None:
            raise ConfigError(
                "this rollout branches as its configuration says",
                key="branch",
                remedy="use run(), or leave it out there",
            )
        wanted = validate(BranchConfig, {**options, "policy": {"kind": "after_steps", "steps": (at,), "n": n}}, {})
        branching = self.config.model_copy(update={"branch": wanted, "job_name": self.name})
        self._plan = plan_job(self._asking(branching, on_ask_user).lower())
        return await self._run(on_ask_user)

    async def restore(self, node: str) -> Restored:
        """Restore the world to an earlier node, while `run` waits for this rollout, which continues from there.

        Later results are reverted: `result.rollbacks` lists them. Returns once the world is restored. An ended rollout
        is rolled back by `bench rollout rollback`, if it was run with `keep="checkpoints"`.

        Raises:
            NotRestorableError: The node has no checkpoint, or the rollout does not run.
        """
        if self._job is None:
            raise NotRestorableError("the rollout does not run", key="node", remedy="await run() in a task beside this")
        return await roll_back_running(self._job.engine.client, self._job.spec.rollout_id(self._job.id, 0), node)

    async def run(self, *, on_ask_user: AskHandler | None = None) -> RolloutResult:
        """Run to the end and return the scored result with its trajectory; after a branch, the trajectory ends there.

        A rollout that fails does not raise: `result.error` has the error, and `result.rewards` is None if nothing was
        measured.

        Args:
            on_ask_user: Called once for each question of the agent or of its children (`UserQuestion`); may be async.
                Returns the id of an option, a text or a table for a form, an `Answer`, or None to decline. Unanswered
                questions are asked again if the rollout is run again.

        Raises:
            StackError: It could not be started; likewise `StoreError` and `SandboxUnavailableError`.
            AskUserError: The callback failed. The agent still waits for an answer.
        """
        asking = self._asking(self.config, on_ask_user)
        if asking is not self.config:
            self._plan = plan_job(asking.lower())
        return await self._run(on_ask_user)

    def _asking(self, config: RolloutConfig, handler: AskHandler | None) -> RolloutConfig:
        """Return the configuration with `permissions="ask"`, if there is a callback that answers."""
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
            await wait_and_answer(job, job.spec.rollout_id(job.id, 0), handler)
        results = self._job.results()
        if not results:
            raise RolloutTerminatedError(
                "the rollout left no result", file=str(self._plan.directory.root), remedy="bench job show"
            )
        return attach_trajectory(results[0])


def attach_trajectory(result: RolloutResult) -> RolloutResult:
    """Return the result with the events of its `acp_trajectory.jsonl`; as it is if it has no directory."""
    if result.directory is None:
        return result
    lines = read_journal(RolloutPaths(Path(result.directory)).trajectory)
    return result.model_copy(update={"trajectory": lines})
