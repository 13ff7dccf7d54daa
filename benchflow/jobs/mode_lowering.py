"""A job's mode (GRPO, V(s)) expanded into the branch configuration of its rollouts, and checked against its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.branch import BranchConfig, Unbranched
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job_modes import GrpoMode
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError


def lower_mode(config: JobConfig, tasks: Sequence[Task]) -> JobConfig:
    """Return the configuration with the branches that its mode stands for, and checkpoints if they are to be kept.

    Raises:
        ConfigError: `branch` is given beside a mode, a task does not have one of the mode's depths, or checkpoints are
            to be kept and `branch` takes none.
    """
    mode = config.mode
    if mode is None:
        return _add_checkpoints(config)
    # A job that is planned again from its stored specification has both.
    if config.branch not in (None, mode.branch):
        raise ConfigError(
            f"the mode {mode.kind} says how rollouts branch, and so does `branch`",
            key="mode",
            remedy="give one of the two: a mode, or `branch` for all that can be said",
        )
    for task in tasks:
        for depth in mode.depths:
            if depth >= task.n_turns:
                has = f"has {task.n_turns} steps" if task.n_turns > 1 else "has one step"
                depths = f"are 0 to {task.n_turns - 1}" if task.n_turns > 1 else "is 0 alone"
                raise ConfigError(
                    f"nothing is left to do at depth {depth}: the task {has}",
                    file=task.name,
                    key="mode.at" if isinstance(mode, GrpoMode) else "mode.depths",
                    remedy=f"its depth {depths}; --exclude {task.name} leaves the task out",
                )
    return _add_checkpoints(config.model_copy(update={"branch": mode.branch}))


def _add_checkpoints(config: JobConfig) -> JobConfig:
    """Return the configuration with a checkpoint per turn, if checkpoints are to be kept and it does not branch."""
    if config.keep != "checkpoints":
        return config
    if config.branch is None:
        return config.model_copy(update={"branch": BranchConfig(policy=Unbranched(), checkpoint="per_turn")})
    if config.branch.checkpoint == "none":
        raise ConfigError(
            "checkpoints are to be kept, and of no node is there one",
            key="branch.checkpoint",
            remedy="set it to branch, every_n or per_turn",
        )
    return config
