"""What a job is for, where that is a way of branching: a GRPO group a task, or V(s) at given depths of each task.

A mode is all that somebody has to say: it stands for a `BranchConfig`, which its job's rollouts then have, and for the
rows that the job writes beside its results (`groups.jsonl`, `values.jsonl`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchflow.contracts.base import Model
from benchflow.contracts.branch import AfterSteps, BranchConfig, Group

MOST_CHILDREN = 1000


class GrpoMode(Model):
    """A group of `n` trajectories that have their first `at` steps in common."""

    kind: Literal["grpo"] = "grpo"
    n: int = Field(default=8, ge=2, le=MOST_CHILDREN)
    at: int = Field(default=0, ge=0)

    @property
    def depths(self) -> tuple[int, ...]:
        return (self.at,)

    @property
    def branch(self) -> BranchConfig:
        """How its rollouts branch: they stop where their group begins."""
        return BranchConfig(policy=Group(n=self.n, at=self.at), max_children=self.n)


class ValueMode(Model):
    """V(s) of the states after so many steps, each the mean of what `n` children earn that go on from there."""

    kind: Literal["value"] = "value"
    depths: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    n: int = Field(default=4, ge=1, le=MOST_CHILDREN)

    @model_validator(mode="after")
    def _check(self) -> ValueMode:
        twice = [depth for depth in self.depths if self.depths.count(depth) > 1]
        if twice:
            raise ValueError(f"the depth {twice[0]} is given twice")
        if self.n * len(self.depths) > MOST_CHILDREN:
            raise ValueError(f"{self.n} children at {len(self.depths)} depths are more than {MOST_CHILDREN}")
        return self

    @property
    def branch(self) -> BranchConfig:
        """How its rollouts branch: each goes on by itself, so that all the states are those of one trunk."""
        policy = AfterSteps(steps=tuple(sorted(self.depths)), n=self.n)
        return BranchConfig(policy=policy, then="itself", max_children=self.n * len(self.depths))


JobMode = Annotated[GrpoMode | ValueMode, Field(discriminator="kind")]
