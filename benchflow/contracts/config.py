"""What a user asks for: configurations of rollouts and jobs, before any task has been read.

Scenes, roles and turns are authoring sugar: they lower to the agents and steps of a job, and nothing at run time
knows them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from benchflow.contracts.error_limit import DEFAULT_ERRORS
from benchflow.contracts.job import MAX_WINDOW, AgentSpec
from benchflow.contracts.modes import JobMode
from benchflow.contracts.retries import TAMPERING, RetryConfig
from benchflow.contracts.reward import LENIENT_VARIABLE
from benchflow.contracts.settings import RunSettings
from benchflow.errors import ConfigError, UnsupportedFeatureError, categories

DEFAULT_CONCURRENCY = 4
"""Sandboxes of a job that run at a time where the user names no number."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Role:
    """Who takes part in a scene. agent: a name of the registry. model: as the agent's provider spells it."""

    name: str
    agent: str
    model: str | None = None


@dataclass(frozen=True, config=_STRICT)
class Turn:
    """One prompt to one role. prompt: None means the task's instruction."""

    role: str
    prompt: str | None = None


@dataclass(frozen=True, config=_STRICT)
class Scene:
    """Roles that take turns in one sandbox. Without turns each role takes one."""

    name: str = "scene-0"
    roles: list[Role] = Field(default_factory=list)
    turns: list[Turn] = Field(default_factory=list)

    @classmethod
    def single(cls, *, agent: str, model: str | None = None) -> Scene:
        """A scene of one role that takes one turn with the task's instruction."""
        return cls(roles=[Role("agent", agent, model)], turns=[Turn("agent")])


class RunOptions(RunSettings):
    """Options that every way of asking has in common."""

    jobs_dir: Path = Path("jobs")
    """The directory that holds the jobs."""

    job_name: str | None = None
    """By default `<directory>-<UTC stamp>-<random digits>`, new at each request."""

    context_root: Path | None = None
    """A build context for all tasks, instead of their own `environment/`."""

    environment_manifest: Path | None = None
    """The world of all tasks, instead of the ones that they or their package name."""

    environment_name: str | None = None
    """The world of all tasks: an environment of an installed package, by its entry point."""

    environment_import_path: str | None = None
    """The world of all tasks: an environment of the user's own, as `module:Class`."""

    environment_root: Path | None = None
    """Directory in which that module is looked for after the installed ones; by default the current one."""

    preflight: bool = True
    """Whether each model is asked for one token before the job starts."""

    rebuild: bool = False
    """Build each image anew, without any cache, once per host; rollouts that come later find it."""

    reward_lenient: bool = Field(default_factory=lambda: os.environ.get(LENIENT_VARIABLE) == "1")
    """Whether reward files are read leniently. A job that is resumed keeps what it was submitted with."""

    agent_env: dict[str, str] = Field(default={}, repr=False)
    """Environment of every agent that says nothing else."""

    base_url: str | None = None
    """Address of the model's endpoint, for every agent that names none."""

    effort: str | None = None
    """Effort of every agent that names none."""

    retry: RetryConfig = RetryConfig()
    """Retries of rollouts that fail."""

    stop_after_errors: int = Field(default=DEFAULT_ERRORS, ge=0)
    """Equal errors without a success after which a job starts nothing more; 0 for never."""

    @field_validator("retry")
    @classmethod
    def _check_categories(cls, retry: RetryConfig) -> RetryConfig:
        """Refuse words that are no category. Not in `RetryConfig`, which workers of other versions read, too."""
        known = categories()
        unknown = [category for category in retry.categories if category not in known]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no category of errors; they are: {', '.join(sorted(known))}")
        if TAMPERING in retry.categories:
            raise ValueError(f"{TAMPERING!r} is never run again: remove it")
        return retry

    def options(self) -> dict[str, Any]:
        """The common options, to be handed on."""
        return {name: getattr(self, name) for name in RunOptions.model_fields}


class JobConfig(RunOptions):
    """A job as it is asked for: which tasks, by whom, how often, how.

    paths: tasks, directories of tasks, or packages. include, exclude: shell patterns over task names.
    sandbox: the provider's name; `auto` is Docker when a daemon answers, else local. mode: what the job is for, instead
    of `branch`.
    """

    paths: list[Path] = Field(min_length=1)
    agents: list[AgentSpec] = Field(default=[AgentSpec(name="oracle")], min_length=1)
    sandbox: str = "auto"
    concurrency: int = Field(default=DEFAULT_CONCURRENCY, ge=1, le=MAX_WINDOW)
    repeats: int = Field(default=1, ge=1, le=10_000)
    include: list[str] = []
    exclude: list[str] = []
    mode: JobMode | None = None

    @field_validator("agents", mode="before")
    @classmethod
    def _parse_agents(cls, value: Any) -> Any:
        """`NAME` and `NAME:MODEL` as well as tables."""
        if isinstance(value, list):
            return [AgentSpec.parse(item) if isinstance(item, str) else item for item in value]
        return value


class RuntimeConfig(RunOptions):
    """How `Runtime.execute()` runs an agent in an environment."""


class RolloutConfig(RunOptions):
    """One rollout as it is asked for. environment: the sandbox provider's name, for historical reasons.

    scenes: who acts; exactly one turn of one role, with the task's own instruction, is carried out in this release.
    """

    task_path: Path
    scenes: list[Scene] = Field(default_factory=lambda: [Scene.single(agent="oracle")])
    environment: str = "auto"

    def lower(self) -> JobConfig:
        """The job of one rollout that this is. Raises `ConfigError` or `UnsupportedFeatureError`."""
        return JobConfig(
            paths=[self.task_path],
            agents=[_only_agent(self.scenes)],
            sandbox=self.environment,
            # Nobody has said how many sandboxes may run, but for the children of one node.
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
