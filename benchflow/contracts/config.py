"""Configurations of rollouts and jobs as a user writes them, before any task has been read.

Scenes, roles and turns are authoring sugar: they are lowered to the agents and steps of a job, and do not exist at run
time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from benchflow.contracts.error_limit import DEFAULT_ERRORS
from benchflow.contracts.job import MAX_WINDOW, AgentSpec
from benchflow.contracts.job_modes import JobMode
from benchflow.contracts.job_retries import TAMPERING, RetryConfig
from benchflow.contracts.reward import LENIENT_VARIABLE
from benchflow.contracts.run_settings import RunSettings
from benchflow.errors import ConfigError, UnsupportedFeatureError, list_categories

DEFAULT_CONCURRENCY = 4
"""Sandboxes of a job that run at the same time, if the user gives no number."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Role:
    """A participant of a scene: an agent with its model."""

    name: str
    """Name by which turns refer to the role."""

    agent: str
    """Name, alias or import path of an agent."""

    model: str | None = None
    """Model, as `provider/model` or as the agent's first provider spells it; None for the agent's own choice."""


@dataclass(frozen=True, config=_STRICT)
class Turn:
    """One prompt to one role."""

    role: str
    """Name of a role of the same scene."""

    prompt: str | None = None
    """Text of the prompt; None for the task's instruction. Any other text is refused in this release."""


@dataclass(frozen=True, config=_STRICT)
class Scene:
    """Roles that take turns in one sandbox. Without turns each role takes one."""

    name: str = "scene-0"
    """Name of the scene in error messages."""

    roles: list[Role] = Field(default_factory=list)
    """Participants of the scene."""

    turns: list[Turn] = Field(default_factory=list)
    """Turns in their order; empty for one turn of each role."""

    @classmethod
    def single(cls, *, agent: str, model: str | None = None) -> Scene:
        """Return a scene of one role that takes one turn, with the task's instruction.

        Args:
            agent: As in `Role.agent`.
            model: As in `Role.model`.
        """
        return cls(roles=[Role("agent", agent, model)], turns=[Turn("agent")])


class RunOptions(RunSettings):
    """Options that the configurations of jobs, rollouts and `Runtime` have in common.

    At most one of `environment_manifest`, `environment_name` and `environment_import_path` may be given.
    """

    jobs_dir: Path = Path("jobs")
    """Directory of the jobs' results; each job has a directory of its name there."""

    job_name: str | None = None
    """Name of the job. A submit under the name of an equal job attaches to it. None for a new job at each submit, with
    the name `<name of the first path>-<UTC time>-<8 random hex digits>`."""

    context_root: Path | None = None
    """Build context of all tasks' images; None for the one that each task names, or its `environment/`."""

    environment_manifest: Path | None = None
    """Manifest of the world of all tasks; None for the manifests that they or their package name."""

    environment_name: str | None = None
    """Entry point of an installed package: an environment in code, as the world of all tasks. None for none."""

    environment_import_path: str | None = None
    """Import path `module:Class` of the user's own environment in code, as the world of all tasks. None for none."""

    environment_root: Path | None = None
    """Directory in which that module is looked for after the installed packages; None for the current directory. Only
    together with `environment_import_path`."""

    preflight: bool = True
    """Whether each model is asked for one token before the job starts, so that a wrong key or address fails at once.
    Never done for a job that replays a record."""

    rebuild: bool = False
    """Whether each image is built anew, without any cache: once per host, for all rollouts of the job."""

    reward_lenient: bool = Field(default_factory=lambda: os.environ.get(LENIENT_VARIABLE) == "1")
    """Whether reward files are read leniently. By default the variable `BENCHFLOW_REWARD_LENIENT` of the submitting
    process decides; a resumed job keeps its value."""

    agent_env: dict[str, str] = Field(default={}, repr=False)
    """Variables of every agent's process, but for the engine's own agents. Equal names in an agent's own `env` win."""

    base_url: str | None = None
    """Base URL of the model's endpoint, as the sandboxes' host reaches it, for every agent that names none; None for
    the provider's own.
    """

    effort: str | None = None
    """Reasoning effort of every agent that names none; None for the agent's default."""

    retry: RetryConfig = RetryConfig()
    """Retry policy for rollouts that fail."""

    stop_after_errors: int = Field(default=DEFAULT_ERRORS, ge=0)
    """Number of equal errors, without a scored rollout, after which a job starts no more rollouts; 0 for no limit."""

    @field_validator("retry")
    @classmethod
    def _check_categories(cls, retry: RetryConfig) -> RetryConfig:
        """Refuse unknown error categories. Not done in `RetryConfig`, which workers of other versions read, too."""
        known = list_categories()
        unknown = [category for category in retry.categories if category not in known]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no category of errors; they are: {', '.join(sorted(known))}")
        if TAMPERING in retry.categories:
            raise ValueError(f"{TAMPERING!r} is never run again: remove it")
        return retry

    def options(self) -> dict[str, Any]:
        """Return the common options by name, as arguments of another configuration."""
        return {name: getattr(self, name) for name in RunOptions.model_fields}


class JobConfig(RunOptions):
    """The configuration of a job: tasks × agents × repeats, and the options of its rollouts."""

    paths: list[Path] = Field(min_length=1)
    """Task directories, directories of tasks, or benchmark packages with their tasks in `tasks/`."""

    agents: list[AgentSpec] = Field(default=[AgentSpec(name="oracle")], min_length=1)
    """Agents that each run all tasks, as tables or as `NAME` or `NAME:MODEL`. By default the tasks' own solutions."""

    sandbox: str = "auto"
    """Name of the sandbox provider: `docker`, `local`, …. `auto` is the earlier provider of a job that is resumed; else
    `docker` on a cluster and where a Docker daemon answers, and `local` elsewhere.
    """

    concurrency: int = Field(default=DEFAULT_CONCURRENCY, ge=1, le=MAX_WINDOW)
    """Sandboxes of the job, those of branches included, that run at the same time. 1 where all rollouts share a
    persistent world.
    """

    repeats: int = Field(default=1, ge=1, le=10_000)
    """Rollouts of each agent on each task."""

    include: list[str] = []
    """Shell patterns of task names; a task is run if one matches. Empty for all tasks."""

    exclude: list[str] = []
    """Shell patterns of task names that are not run; they win over `include`."""

    mode: JobMode | None = None
    """Mode that determines how rollouts branch, instead of `branch`; None for none."""

    @field_validator("agents", mode="before")
    @classmethod
    def _parse_agents(cls, value: Any) -> Any:
        """Parse agents that are written as `NAME` or `NAME:MODEL`, and leave tables as they are."""
        if isinstance(value, list):
            return [AgentSpec.parse(item) if isinstance(item, str) else item for item in value]
        return value


class RuntimeConfig(RunOptions):
    """Options of `Runtime.execute()`, which runs one agent in one environment."""


class RolloutConfig(RunOptions):
    """The configuration of one rollout."""

    task_path: Path
    """Directory of the task."""

    scenes: list[Scene] = Field(default_factory=lambda: [Scene.single(agent="oracle")])
    """Scenes of the rollout. In this release exactly one scene with one turn, with the task's own instruction. By
    default the task's own solution."""

    environment: str = "auto"
    """Name of the sandbox provider, as in `JobConfig.sandbox`. The name of the field is historical."""

    def lower(self) -> JobConfig:
        """Return the configuration of a job with this one rollout.

        Raises:
            ConfigError: There is no scene, or a turn names an undeclared role.
            UnsupportedFeatureError: There is more than one turn, or a turn with a prompt of its own.
        """
        return JobConfig(
            paths=[self.task_path],
            agents=[_only_agent(self.scenes)],
            sandbox=self.environment,
            # The one concurrency that this configuration may have is that of the children of one node.
            concurrency=self.branch.concurrency if self.branch is not None else 1,
            **self.options(),
        )


def _only_agent(scenes: list[Scene]) -> AgentSpec:
    if not scenes:
        raise ConfigError("a rollout needs a scene", key="scenes", remedy="Scene.single(agent=…)")
    for scene in scenes:
        known = {role.name: role for role in scene.roles}
        for turn in scene.turns:
            if turn.role not in known:
                raise ConfigError(
                    f"turn of an undeclared role {turn.role!r}",
                    key=f"scenes.{scene.name}.turns",
                    remedy=f"declare it in roles, or use one of: {', '.join(known) or 'none'}",
                )
    turns = [turn for scene in scenes for turn in (scene.turns or [Turn(role.name) for role in scene.roles])]
    if len(turns) != 1 or turns[0].prompt is not None or len(scenes) != 1:
        raise UnsupportedFeatureError(
            "scenes of more than one turn, and turns with a prompt of their own, are not carried out",
            key="scenes",
            remedy="use Scene.single(agent=…, model=…)",
        )
    role = next(role for role in scenes[0].roles if role.name == turns[0].role)
    return AgentSpec(name=role.agent, model=role.model)
