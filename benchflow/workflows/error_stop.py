"""The stop of a job after equal errors: at once, or after its user was asked and refused, or did not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.error_limit import ErrorLimit, ErrorLimitDecision
    from benchflow.contracts.rollout_records import Failure, RolloutOutcome


class ErrorStop:
    """The error limit of a job at work: counts outcomes, holds back starts, asks the user, and stops the job."""

    def __init__(self, limit: ErrorLimit, give_up: Callable[[Failure], None], *, answer_sec: float) -> None:
        """Start to count, or continue after continue-as-new.

        Args:
            limit: Error limit of the job, with the errors counted so far.
            give_up: Stops the job; called with the error for the rollouts that are not started.
            answer_sec: Seconds for which a user's answer is awaited.
        """
        self._answer_sec = answer_sec
        self.limit = limit
        self._give_up = give_up

    @property
    def asked(self) -> Failure | None:
        """Return the error about which the user is being asked; None while no answer is awaited."""
        return self.limit.asked

    @property
    def asked_until(self) -> float | None:
        """Return the workflow time at which the wait for the user's answer ends; None while none is awaited."""
        return None if self.asked is None else self.limit.asked_at + self._answer_sec

    @property
    def holds(self) -> bool:
        """Return whether no rollout may be started now: the limit is reached, or the user is being asked."""
        return self.limit.reached is not None or self.asked is not None

    def add(self, outcome: RolloutOutcome) -> None:
        """Count the outcome of a rollout. If it reaches the limit, starts are held back until `settle` decides.

        Args:
            outcome: Outcome of a rollout that is not retried.
        """
        self.limit = self.limit.plus(outcome)
        if self.asked is None and (failure := self.limit.reached_by(outcome)) is not None:
            self._update(reached=failure)

    def settle(self, *, n_open: int, has_more: bool) -> None:
        """Stop the job or ask its user, if the limit is reached and all open rollouts have ended. Else do nothing.

        It waits for open rollouts because one of them may be scored: a failing build of an image takes seconds, a good
        rollout minutes. A question without an answer in time stops the job.

        Args:
            n_open: Number of open rollouts.
            has_more: Whether rollouts wait to be started. If not, there is nothing to stop.
        """
        until = self.asked_until
        if until is not None and workflow.time() >= until:
            # The user has not answered in time.
            self.decide(ErrorLimitDecision(continues=False))
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

    def decide(self, decision: ErrorLimitDecision) -> None:
        """Continue or stop the job by the user's decision. Ignored, and so idempotent, if none is awaited.

        Args:
            decision: Whether the job continues. Equal errors then count no more.
        """
        asked = self.asked
        self._update(asked=None)
        if asked is not None and decision.continues:
            self.limit = self.limit.going_on()
        elif asked is not None:
            self._give_up(asked)

    def _update(self, **changes: Any) -> None:
        self.limit = self.limit.model_copy(update=changes)
