"""Counts of the rollouts of a running job that have ended, by status, and sums of their rewards."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.rollout_records import RolloutOutcome


class RewardSums(Model):
    """Sums of the scalar rewards of one agent's rollouts that have ended. Measured rewards and V(s) stay separate."""

    n: int = 0
    """Number of rewards that verifiers have measured."""

    total: float = 0.0
    """Sum of the measured rewards."""

    n_values: int = 0
    """Number of rewards that are the V(s) of rollouts that branched, which no verifier has measured."""

    total_value: float = 0.0
    """Sum of these V(s)."""

    def plus(self, reward: float, *, is_value: bool) -> RewardSums:
        """Return the sums with one more reward.

        Args:
            reward: The scalar reward.
            is_value: Whether it is a V(s), and not measured.
        """
        if is_value:
            return self.model_copy(update={"n_values": self.n_values + 1, "total_value": self.total_value + reward})
        return self.model_copy(update={"n": self.n + 1, "total": self.total + reward})


class Counts(Model):
    """Counts of the rollouts of a job that have ended. A rollout that is run again is not counted yet."""

    passed: int = 0
    """Rollouts whose scalar reward is 1 or more."""

    failed: int = 0
    """Rollouts whose scalar reward is less than 1."""

    errored: int = 0
    """Rollouts of which nothing was measured, lost ones included."""

    cancelled: int = 0
    """Rollouts that were cancelled."""

    scored: int = 0
    """Rollouts whose rewards have several keys and no scalar: they neither passed nor failed."""

    not_started: int = 0
    """Rollouts that the job gave up before it started them, since it had reached its error limit."""

    reward_sum: float = Field(default=0.0, exclude=True)
    """Sum of rewards that earlier versions pooled over all agents. Read from their histories, and not used."""

    rewarded: int = 0
    """Number of rollouts that have a scalar reward."""

    n_values: int = 0
    """Number of these rewards that are a V(s)."""

    agents: dict[str, RewardSums] = {}
    """Sums of rewards by label of the agent, without the rollouts that ended while an earlier version ran the job.

    Agents are not pooled, since no mean is of several agents.
    """

    @property
    def finished(self) -> int:
        """Return how many rollouts have ended."""
        return self.passed + self.failed + self.scored + self.errored + self.cancelled + self.not_started

    def plus_lost(self, number: int, status: Literal["errored", "not_started"] = "errored") -> Counts:
        """Return the counts with rollouts that have not reported, and of which nothing else is known.

        Args:
            number: Number of these rollouts.
            status: The field that they count in.
        """
        return self.model_copy(update={status: getattr(self, status) + number})

    def plus(self, outcome: RolloutOutcome, agent: str | None) -> Counts:
        """Return the counts with one more rollout that has ended.

        Args:
            outcome: Outcome of the rollout.
            agent: Label of its agent; None if it is not known, so that its reward is in no sum.
        """
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
