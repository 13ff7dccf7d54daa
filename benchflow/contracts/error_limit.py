"""The error limit of a job: it stops starting rollouts after a number of equal errors without a success."""

from __future__ import annotations

import re

from benchflow.contracts.base import Model
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout_records import Failure, RolloutOutcome
from benchflow.errors import (
    NotStartedError,
    RewardScalarError,
    RolloutCancelledError,
    RolloutDeadlineError,
    RolloutTerminatedError,
    TamperingError,
)

DEFAULT_ERRORS = 5
"""Equal errors without a success from which on the cause is taken to be common to all rollouts."""

_MAX_KINDS = 100
"""Most kinds of errors that are counted. A job carries them across continue-as-new, in its input."""

_NO_SCALAR = RewardScalarError.category
"""Category of the error of a rollout whose verifier, or a child's, reported several keys and no scalar reward."""

_NOT_COUNTED = frozenset(
    kind.category for kind in (RolloutCancelledError, RolloutDeadlineError, RolloutTerminatedError, TamperingError)
)
"""Categories of errors that do not count, since they do not predict how later rollouts end."""

_VARYING = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}|[0-9a-f]{8,}|\d+"
)
"""Parts of messages that differ between equal errors: UUIDs, ids of requests, hashes, ports, times."""


class ErrorLimitDecision(Model):
    """A user's answer to a job that has reached its error limit."""

    continues: bool
    """Whether the job continues. If not, it starts no more rollouts."""


class ErrorLimit(Model):
    """The error limit of a job, and the errors that count towards it. Carried across continue-as-new."""

    errors: int = 0
    """Equal errors after which the job stops; 0 for never."""

    asks: bool = False
    """Whether a user watches the job on a terminal, and is asked before the job stops."""

    needs_scalar: bool = False
    """Whether rollouts branch, so that one verifier without a scalar reward is enough to reach the limit."""

    lacks_scalar: bool = False
    """Whether `needs_scalar`, and a verifier has reported no scalar reward."""

    seen: dict[str, int] = {}
    """Number of errors so far, by kind: type, key and message of the error, without the parts that vary."""

    is_off: bool = False
    """Whether equal errors count no more: a rollout was scored, or the user decided to continue. In the first case, a
    missing scalar reward still counts.
    """

    reached: Failure | None = None
    """Error for the rollouts that are not started, from when the limit is reached until the job stops or asks its user;
    else None. It waits for the rollouts that are still open, since one of them may be scored.
    """

    asked: Failure | None = None
    """Error about which the user is asked, until there is an answer or the time for it is over; else None."""

    asked_at: float = 0.0
    """Workflow time at which the user was asked, in seconds since the epoch; 0 before."""

    def going_on(self) -> ErrorLimit:
        """Return the limit after the user has decided to continue: nothing counts any more."""
        return self.model_copy(update={"is_off": True, "needs_scalar": False, "lacks_scalar": False})

    def plus(self, outcome: RolloutOutcome) -> ErrorLimit:
        """Return the limit with one more outcome counted.

        Args:
            outcome: Outcome of a rollout that is not retried.
        """
        if not self.errors or self.lacks_scalar:
            return self
        failure = outcome.error or outcome.verifier_error
        if self.needs_scalar and failure is not None and failure.category == _NO_SCALAR:
            # That other tasks have a scalar does not give this one any.
            return self.model_copy(update={"lacks_scalar": True})
        if self.is_off:
            return self
        if outcome.rewards is not None:
            return self.model_copy(update={"is_off": True, "seen": {}, "reached": None})
        if failure is None or failure.category in _NOT_COUNTED:
            return self
        kind = f"{failure.type} {failure.key} {_VARYING.sub('#', failure.message)[:200]}"
        if kind not in self.seen and len(self.seen) >= _MAX_KINDS:
            return self
        return self.model_copy(update={"seen": self.seen | {kind: self.seen.get(kind, 0) + 1}})

    def reached_by(self, outcome: RolloutOutcome) -> Failure | None:
        """Return the error for the rollouts that are not started; None unless the limit is reached.

        Args:
            outcome: Outcome that was counted last, whose error is in the message.
        """
        failure = outcome.error or outcome.verifier_error
        if failure is None or not self.errors:
            return None
        if self.lacks_scalar and failure.category == _NO_SCALAR:
            message = f"a verifier has no scalar reward, which rollouts that branch need: {failure.message}"
        elif not self.is_off and max(self.seen.values(), default=0) >= self.errors:
            message = f"{self.errors} rollouts failed alike, and none was scored: {failure.message}"
        else:
            return None
        remedy = f"{failure.remedy or 'mend the cause'}; then bench job resume runs the rest"
        return failure_of(NotStartedError(message, key=failure.key, remedy=remedy), "plan")
