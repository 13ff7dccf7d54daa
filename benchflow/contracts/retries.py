"""When a rollout that failed is run again."""

from __future__ import annotations

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.rollout import RolloutOutcome, RolloutResult
from benchflow.errors import TamperingError

TAMPERING = TamperingError.category
"""Category of a rollout whose reward is withheld. It is never run again: that would go on until nothing was found."""


class RetryConfig(Model):
    """When a rollout is run again, from its root, because of how it failed.

    max_retries: further attempts a rollout. The n-th waits min_wait_sec * wait_multiplier**(n-1) seconds, at most
    max_wait_sec. categories: the error categories that are worth another attempt; by default those in which the engine,
    and not the task or the agent, was in trouble. docs/errors.md lists all of them.
    """

    max_retries: int = Field(default=2, ge=0)
    wait_multiplier: float = Field(default=2.0, ge=1)
    min_wait_sec: float = Field(default=1.0, ge=0)
    max_wait_sec: float = Field(default=30.0, ge=0)
    categories: tuple[str, ...] = (
        "agent_connection",
        "gateway",
        "sandbox",
        "sandbox_lost",
        "stack",
        "store",
    )

    def allows(self, ended: RolloutOutcome | RolloutResult) -> bool:
        """Return whether a rollout that has ended so is run again."""
        failure = ended.error or ended.verifier_error
        if ended.status != "errored" or failure is None:
            return False
        if any(one is not None and one.category == TAMPERING for one in (ended.error, ended.verifier_error)):
            return False
        return failure.category in self.categories and ended.attempt <= self.max_retries

    def wait(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt` (from 1)."""
        try:
            growth = min(self.wait_multiplier ** (attempt - 1), 1e9)
        except OverflowError:
            growth = 1e9
        return min(self.min_wait_sec * growth, self.max_wait_sec)
