"""A job's stop after equal errors: at once, or when its user says so, or does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.error_limit import Decision, ErrorLimit
    from benchflow.contracts.rollout import Failure, RolloutOutcome


class ErrorStop:
    """Counts outcomes towards the limit of equal errors."""

    def __init__(self, limit: ErrorLimit, give_up: Callable[[Failure], None], *, answer_sec: float) -> None:
        """Begin or resume.

        Args:
            limit: The job's, with what counted so far.
            give_up: Called once, with the error of the rollouts that are not started.
            answer_sec: Seconds that a user has to answer.
        """
        self._answer_sec = answer_sec
        self.limit = limit
        self._give_up = give_up

    @property
    def asked(self) -> Failure | None:
        """Return what the user is asked about; None for nothing."""
        return self.limit.asked

    @property
    def asked_until(self) -> float | None:
        """Return the workflow time until which an answer is waited for; None if nothing is asked."""
        return None if self.asked is None else self.limit.asked_at + self._answer_sec

    @property
    def holds(self) -> bool:
        """Return whether no rollout may be started now."""
        return self.limit.reached is not None or self.asked is not None

    def add(self, outcome: RolloutOutcome) -> None:
        """Count an outcome."""
        self.limit = self.limit.plus(outcome)
        if self.asked is None and (failure := self.limit.reached_by(outcome)) is not None:
            self._update(reached=failure)

    def settle(self, *, n_open: int, has_more: bool) -> None:
        """Stop, or ask, once the limit is reached and no rollout is open that may yet be scored.

        What fails at once is not all that fails: builds of images fail in seconds, and good rollouts take minutes.

        Args:
            n_open: Rollouts that are open.
            has_more: Whether rollouts still wait to be started.
        """
        until = self.asked_until
        if until is not None and workflow.time() >= until:
            # Nobody has answered in time.
            self.decide(Decision(continues=False))
        failure = self.limit.reached
        if failure is None or (n_open and has_more):
            return
        self._update(reached=None)
        if not has_more:
            return
        if self.limit.asks:
            self._update(asked=failure, asked_at=workflow.time())
        else:
            self._give_up(failure)

    def decide(self, decision: Decision) -> None:
        """Take a user's answer, if one is waited for."""
        asked = self.asked
        self._update(asked=None)
        if asked is not None and decision.continues:
            self.limit = self.limit.going_on()
        elif asked is not None:
            self._give_up(asked)

    def _update(self, **changes: Any) -> None:
        self.limit = self.limit.model_copy(update=changes)
