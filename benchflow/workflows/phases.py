"""Where a rollout is in its life, since when, and how long each phase has taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.rollout import Phase

_PHASE = SearchAttributeKey.for_keyword(names.ATTR_PHASE)
_REWARD = SearchAttributeKey.for_float(names.ATTR_REWARD)


class Phases:
    """timing: seconds by phase, of those that were left."""

    def __init__(self) -> None:
        self.phase: Phase = "plan"
        self.since: datetime = workflow.now()
        self.timing: dict[str, float] = {}

    def enter(self, phase: Phase, rewards: dict[str, float] | None = None) -> None:
        """Leave the phase for another one, and have the workflow found by it, and by its reward once there is one."""
        now = workflow.now()
        self.timing[self.phase] = self.timing.get(self.phase, 0.0) + (now - self.since).total_seconds()
        self.phase, self.since = phase, now
        updates: list[Any] = [_PHASE.value_set(phase)]
        if rewards is not None:
            updates.append(_REWARD.value_set(rewards["reward"]))
        workflow.upsert_search_attributes(updates)
