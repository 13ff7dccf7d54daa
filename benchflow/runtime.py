"""Entry points of the Python API: `run`, and agent plus environment (`Agent`, `Environment`, `Runtime`).

All of them run a `Rollout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.contracts.config import RolloutConfig, RuntimeConfig, Scene
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ConfigError
from benchflow.rollout import Rollout

__all__ = ["Agent", "Environment", "Runtime", "RuntimeConfig", "run"]


@dataclass(frozen=True)
class Agent:
    """Agent in the registry, and its model."""

    name: str
    """Name in the registry."""
    model: str | None = None
    """Model that it uses; None for the agent's own choice."""


@dataclass(frozen=True)
class Environment:
    """Task, and the sandbox provider that it runs on."""

    task_path: Path
    """Directory of the task."""
    sandbox: str = "auto"
    """Name of the sandbox provider; `auto` chooses one."""

    @classmethod
    def from_task(cls, path: str | Path, sandbox: str = "auto") -> Environment:
        """Return the environment of a task's directory."""
        return cls(Path(path), sandbox)


class Runtime:
    """Runner of an agent in an environment: `await Runtime(env, agent, config=…).execute()`."""

    def __init__(self, environment: Environment, agent: Agent, *, config: RuntimeConfig | None = None) -> None:
        """Make it; `config` has the options of the rollout."""
        self.environment = environment
        self.agent = agent
        self.config = config or RuntimeConfig()

    async def execute(self) -> RolloutResult:
        """Run the rollout and return its scored result. Raises as `Rollout.run` does."""
        rollout = RolloutConfig(
            task_path=self.environment.task_path,
            scenes=[Scene.single(agent=self.agent.name, model=self.agent.model)],
            environment=self.environment.sandbox,
            **self.config.options(),
        )
        return await (await Rollout.create(rollout)).run()


async def run(
    subject: RolloutConfig | Agent | str,
    environment: Environment | None = None,
    runtime_config: RuntimeConfig | None = None,
    *,
    task_path: str | Path | None = None,
    model: str | None = None,
    config: RuntimeConfig | None = None,
) -> RolloutResult:
    """Run one rollout and return its scored result.

    Three forms: `run(RolloutConfig(…))`; `run(agent, environment, runtime_config)`; `run("agent", task_path=…, model=…,
    config=…)`.

    Args:
        subject: Configuration of the rollout, agent, or name of an agent.
        environment: Environment, with an agent.
        runtime_config: Options, with an agent.
        task_path: Directory of the task, with the name of an agent.
        model: Model, with the name of an agent.
        config: Options, with the name of an agent.

    Raises:
        ConfigError: An argument is missing, or belongs to another form; otherwise errors are those of `Rollout.run`.
    """
    if isinstance(subject, RolloutConfig):
        _refuse(environment=environment, runtime_config=runtime_config, task_path=task_path, model=model, config=config)
        return await (await Rollout.create(subject)).run()
    if isinstance(subject, str):
        if task_path is None:
            raise ConfigError("a task is needed", key="task_path", remedy='run("agent", task_path="tasks/my-task")')
        _refuse(environment=environment, runtime_config=runtime_config)
        return await Runtime(Environment.from_task(task_path), Agent(subject, model=model), config=config).execute()
    if environment is None:
        raise ConfigError("an environment is needed", key="environment", remedy="Environment.from_task(path)")
    _refuse(task_path=task_path, model=model, config=config)
    return await Runtime(environment, subject, config=runtime_config).execute()


def _refuse(**given: Any) -> None:
    """Raise `ConfigError` for a given argument of another form of `run`, which would be ignored otherwise."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} does not go with this way of calling run()", key=name, remedy="see help(run)")
