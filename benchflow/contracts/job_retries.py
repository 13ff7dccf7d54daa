"""The retry policy of a job: which failed rollouts are run again, and after how long."""

from __future__ import annotations

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.rollout_records import RolloutOutcome, RolloutResult
from benchflow.errors import TamperingError

TAMPERING = TamperingError.category
"""Error category of a rollout whose reward is withheld because of tampering. It is never retried: retries would repeat
the attempt until no tampering was found."""


class RetryConfig(Model):
    """The retry policy of a job's rollouts. A retry runs the whole rollout again, from its root.

    The waits also apply to rollouts whose workflow could not be started, whatever the number of retries.
    """

    max_retries: int = Field(default=2, ge=0)
    """Most retries of one rollout, besides its first attempt; 0 for none."""

    wait_multiplier: float = Field(default=2.0, ge=1)
    """Factor by which the wait grows from one retry to the next; 1 for equal waits."""

    min_wait_sec: float = Field(default=1.0, ge=0)
    """Seconds before the first retry."""

    max_wait_sec: float = Field(default=30.0, ge=0)
    """Longest wait before a retry, in seconds."""

    categories: tuple[str, ...] = (
        "agent_connection",
        "gateway",
        "sandbox",
        "sandbox_lost",
        "stack",
        "store",
    )
    """Error categories that are retried; docs/errors.md lists all. By default failures of the engine, and not of the
    task or the agent."""

    def allows(self, ended: RolloutOutcome | RolloutResult) -> bool:
        """Return whether a rollout is retried. ended: its outcome."""
        failure = ended.error or ended.verifier_error
        if ended.status != "errored" or failure is None:
            return False
        if any(one is not None and one.category == TAMPERING for one in (ended.error, ended.verifier_error)):
            return False
        return failure.category in self.categories and ended.attempt <= self.max_retries

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt`, from 1."""
        try:
            growth = min(self.wait_multiplier ** (attempt - 1), 1e9)
        except OverflowError:
            growth = 1e9
        return min(self.min_wait_sec * growth, self.max_wait_sec)
