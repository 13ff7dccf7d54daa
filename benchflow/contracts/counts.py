"""How many rollouts of a job have ended, and how, while it runs."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.rollout import RolloutOutcome


class RewardSums(Model):
    """Sums of the rewards of an agent's rollouts that have ended."""

    n: int = 0
    """Rewards that verifiers have measured."""

    total: float = 0.0
    """Their sum."""

    n_values: int = 0
    """V(s) of rollouts that branched, which are no measured rewards."""

    total_value: float = 0.0
    """Their sum."""

    def plus(self, reward: float, *, is_value: bool) -> RewardSums:
        """Return the sums with one more reward."""
        if is_value:
            return self.model_copy(update={"n_values": self.n_values + 1, "total_value": self.total_value + reward})
        return self.model_copy(update={"n": self.n + 1, "total": self.total + reward})


class Counts(Model):
    """The rollouts of a job that have ended."""

    passed: int = 0
    """Their reward is 1 or more."""

    failed: int = 0
    """They were scored and did not pass."""

    errored: int = 0
    """Nothing was measured."""

    cancelled: int = 0
    """Somebody stopped them."""

    scored: int = 0
    """They were measured by several keys without a scalar: they neither passed nor failed."""

    not_started: int = 0
    """The job had stopped before their turn."""

    reward_sum: float = Field(default=0.0, exclude=True)
    """Is read from histories of earlier versions, and used for nothing: it pooled all agents."""

    rewarded: int = 0
    """How many have a scalar reward."""

    n_values: int = 0
    """How many of these rewards are a V(s)."""

    agents: dict[str, RewardSums] = {}
    """By agent; without the rollouts that ended while an earlier version ran the job."""

    @property
    def finished(self) -> int:
        return self.passed + self.failed + self.scored + self.errored + self.cancelled + self.not_started

    def plus_lost(self, number: int, status: Literal["errored", "not_started"] = "errored") -> Counts:
        """Return the counts with rollouts that have not reported, and of which nothing else is known."""
        return self.model_copy(update={status: getattr(self, status) + number})

    def plus(self, outcome: RolloutOutcome, agent: str | None) -> Counts:
        """Return the counts with one more rollout. agent: whose it is; None if that is not known."""
        update: dict[str, object] = {outcome.status: getattr(self, outcome.status) + 1}
        reward = (outcome.rewards or {}).get("reward", math.nan)
        if math.isfinite(reward):
            is_value = outcome.reward_kind == "value"
            update["rewarded"] = self.rewarded + 1
            update["n_values"] = self.n_values + is_value
            if agent is not None:
                sums = self.agents.get(agent, RewardSums()).plus(reward, is_value=is_value)
                update["agents"] = {**self.agents, agent: sums}
        return self.model_copy(update=update)
