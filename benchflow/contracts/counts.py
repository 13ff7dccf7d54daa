"""How far a job is, in numbers."""

from __future__ import annotations

import math

from benchflow.contracts.base import Model
from benchflow.contracts.rollout import RolloutOutcome


class Counts(Model):
    """How many rollouts of a job have ended, and how. n_values: how many of the rewards are a V(s)."""

    passed: int = 0
    failed: int = 0
    errored: int = 0
    cancelled: int = 0
    reward_sum: float = 0.0
    rewarded: int = 0
    n_values: int = 0
    scored: int = 0
    """Measured by several keys, without a scalar: neither passed nor failed, and in no mean."""

    @property
    def finished(self) -> int:
        return self.passed + self.failed + self.scored + self.errored + self.cancelled

    def plus_errored(self, number: int) -> Counts:
        """Return the counts with rollouts that have failed, and of which nothing else is known."""
        return self.model_copy(update={"errored": self.errored + number})

    def plus(self, outcome: RolloutOutcome) -> Counts:
        """Return the counts with one more rollout."""
        update: dict[str, float] = {outcome.status: getattr(self, outcome.status) + 1}
        if outcome.rewards is not None and math.isfinite(outcome.rewards.get("reward", math.nan)):
            update["reward_sum"] = self.reward_sum + outcome.rewards["reward"]
            update["rewarded"] = self.rewarded + 1
            update["n_values"] = self.n_values + (outcome.reward_kind == "value")
        return self.model_copy(update=update)
