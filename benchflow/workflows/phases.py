"""Where a rollout is in its life, since when, and how long each phase has taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.job import RolloutProgress, RolloutSpec
    from benchflow.contracts.rewards import scalar_of
    from benchflow.contracts.rollout import Phase, Question
    from benchflow.workflows.deadline import Deadline

_PHASE = SearchAttributeKey.for_keyword(names.ATTR_PHASE)
_REWARD = SearchAttributeKey.for_float(names.ATTR_REWARD)


class Phases:
    """timing: seconds of work by phase, of those that were left; `wait`: seconds in which it waited."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._waited_before = 0.0
        self.phase: Phase = "plan"
        self.since: datetime = workflow.now()
        self.timing: dict[str, float] = {}

    def enter(self, phase: Phase, rewards: dict[str, float] | None = None) -> None:
        """Leave the phase for another one, and have the workflow found by it, and by its reward once there is one."""
        now = workflow.now()
        self._deadline.count()
        waited = self._deadline.waited_sec
        worked = (now - self.since).total_seconds() - (waited - self._waited_before)
        self.timing[self.phase] = self.timing.get(self.phase, 0.0) + worked
        # Last, after the phases in their order.
        self.timing.pop("wait", None)
        if waited:
            self.timing["wait"] = waited
        self._waited_before = waited
        self.phase, self.since = phase, now
        updates: list[Any] = [_PHASE.value_set(phase)]
        if (scalar := scalar_of(rewards)) is not None:
            updates.append(_REWARD.value_set(scalar))
        workflow.upsert_search_attributes(updates)

    def progress(self, spec: RolloutSpec, detail: str, question: Question | None) -> RolloutProgress:
        """Return what a rollout answers when it is asked how far it is."""
        return RolloutProgress(
            phase=self.phase,
            detail=detail,
            since=self.since.timestamp(),
            attempt=spec.attempt,
            chain=spec.chain,
            question=question,
        )
