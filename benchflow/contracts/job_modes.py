"""Job modes: a GRPO group for each task, or V(s) at given depths of each task.

A mode replaces a `BranchConfig`: it determines how the job's rollouts branch, and which rows the job writes beside its
results (`groups.jsonl`, `values.jsonl`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchflow.contracts.base import Model
from benchflow.contracts.branch import AfterSteps, BranchConfig, Group

MAX_CHILDREN = 1000
"""Most children of one rollout in a mode."""


class GrpoMode(Model):
    """GRPO: a group of trajectories with a shared prefix, for each rollout of the job."""

    kind: Literal["grpo"] = "grpo"
    """Marks this form of `JobMode`."""

    n: int = Field(default=8, ge=2, le=MAX_CHILDREN)
    """Number of trajectories in the group."""

    at: int = Field(default=0, ge=0)
    """Steps of the shared prefix; 0 if the trajectories share only the initial state. Less than the task's steps."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Return the depth of the node where the group branches, in steps."""
        return (self.at,)

    @property
    def branch(self) -> BranchConfig:
        """Return the branch configuration: a rollout stops where its group branches."""
        return BranchConfig(policy=Group(n=self.n, at=self.at), max_children=self.n)


class ValueMode(Model):
    """Value estimates: V(s) of states along one trunk, each the mean return of children that continue from there."""

    kind: Literal["value"] = "value"
    """Marks this form of `JobMode`."""

    depths: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """Depths of the states, in steps from the root; 0 is the initial state. Each less than the task's steps."""

    n: int = Field(default=4, ge=1, le=MAX_CHILDREN)
    """Number of children per state. All depths together may have at most `MAX_CHILDREN`."""

    @model_validator(mode="after")
    def _check(self) -> ValueMode:
        twice = [depth for depth in self.depths if self.depths.count(depth) > 1]
        if twice:
            raise ValueError(f"the depth {twice[0]} is given twice")
        if self.n * len(self.depths) > MAX_CHILDREN:
            raise ValueError(f"{self.n} children at {len(self.depths)} depths are more than {MAX_CHILDREN}")
        return self

    @property
    def branch(self) -> BranchConfig:
        """Return the branch configuration: a rollout continues by itself, so that all states lie on one trunk."""
        policy = AfterSteps(steps=tuple(sorted(self.depths)), n=self.n)
        return BranchConfig(policy=policy, then="itself", max_children=self.n * len(self.depths))


JobMode = Annotated[GrpoMode | ValueMode, Field(discriminator="kind")]
"""Mode of a job; `kind` says which one."""
