"""When a job stops starting rollouts: after a number of equal errors without a success."""

from __future__ import annotations

import re

from benchflow.contracts.base import Model
from benchflow.contracts.retries import TAMPERING
from benchflow.contracts.rollout import Failure, RolloutOutcome

DEFAULT_ERRORS = 5
"""Equal errors without a success that are taken for the fault of what all rollouts have in common."""

_MAX_KINDS = 100
"""Kinds of errors that are counted: a job carries them in its input."""

_NO_SCALAR = "reward_scalar"
"""Category of the error of a rollout whose verifier, or those of its children, reported several keys and no scalar."""

_NOT_COUNTED = frozenset({"cancelled", "deadline", TAMPERING, "terminated"})
"""Categories that do not predict how later rollouts end."""

_VARYING = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}|[0-9a-f]{8,}|\d+"
)
"""Parts of messages that differ between equal errors: UUIDs, ids of requests, hashes, ports, times."""


class Decision(Model):
    """A user's answer to a job that asks whether it is to go on."""

    continues: bool


class ErrorLimit(Model):
    """The limit of a job, and what counts towards it. Carried across continue-as-new."""

    errors: int = 0
    """Equal errors after which the job stops; 0 for never."""
    asks: bool = False
    """Whether a user watches the job on a terminal, and is asked."""
    needs_scalar: bool = False
    """Whether rollouts branch, so that a verifier without a scalar reward stops the job at once."""
    lacks_scalar: bool = False
    """Whether a verifier has reported no scalar reward, and `needs_scalar`."""
    seen: dict[str, int] = {}
    """Number of errors of each kind so far."""
    is_off: bool = False
    """Whether nothing counts any more: a rollout was scored, or the user decided to go on."""
    reached: Failure | None = None
    """The error of rollouts that are not started, once the limit is reached and until that is decided; else None."""
    asked: Failure | None = None
    """Question to the user, as an error; None for none."""
    asked_at: float = 0.0
    """Workflow time of the question, in seconds."""

    def going_on(self) -> ErrorLimit:
        """Return the limit of a job whose user has decided that it goes on."""
        return self.model_copy(update={"is_off": True, "needs_scalar": False, "lacks_scalar": False})

    def plus(self, outcome: RolloutOutcome) -> ErrorLimit:
        """Return the limit with one more outcome of a rollout that is not run again."""
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
        """Return the error of the rollouts that are not started, if this outcome has reached the limit."""
        failure = outcome.error or outcome.verifier_error
        if failure is None or not self.errors:
            return None
        if self.lacks_scalar and failure.category == _NO_SCALAR:
            message = f"a verifier has no scalar reward, which rollouts that branch need: {failure.message}"
        elif not self.is_off and max(self.seen.values(), default=0) >= self.errors:
            message = f"{self.errors} rollouts failed alike, and none was scored: {failure.message}"
        else:
            return None
        return Failure(
            type="NotStartedError",
            category="not_started",
            message=message,
            phase="plan",
            key=failure.key,
            remedy=f"{failure.remedy or 'mend the cause'}; then bench job resume runs the rest",
        )
