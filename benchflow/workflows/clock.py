"""The phases of a rollout, and the clock of its deadline, which counts work but not waiting or outages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.fixed_durations import LATE_SEC, SLICE_SEC
    from benchflow.contracts.rewards import scalar_of
    from benchflow.contracts.rollout_records import Phase

_PHASE = SearchAttributeKey.for_keyword(temporal_names.ATTR_PHASE)
_REWARD = SearchAttributeKey.for_float(temporal_names.ATTR_REWARD)


class Deadline:
    """Clock of a rollout's work, with a limit. It stops while the rollout waits, and during outages."""

    def __init__(self, limit_sec: float) -> None:
        """Start the clock.

        Args:
            limit_sec: Maximum number of seconds of work.
        """
        self.limit_sec = limit_sec
        self.waited_sec = 0.0
        """Seconds so far that the rollout has waited for a slot, a person, or children."""
        self._worked_sec = 0.0
        self._counted_to: datetime = workflow.now()
        self._timer_due: float | None = None
        self._waits: list[str] = []

    @property
    def waits_for(self) -> str | None:
        """Return the reason of the latest wait that is still open; None while the rollout works."""
        return self._waits[-1] if self._waits else None

    @contextmanager
    def pause(self, thing: str, on_change: Callable[[], None]) -> Iterator[None]:
        """Stop the clock for the block. Blocks may overlap.

        Args:
            thing: What the rollout waits for, for display (`waits_for`).
            on_change: Called at the beginning and at the end of the block.
        """
        self.count()
        self._waits.append(thing)
        on_change()
        try:
            yield
        finally:
            self.count()
            self._waits.remove(thing)
            on_change()

    def count(self) -> None:
        """Add the time since the last call to the seconds of work or, during a wait, to the seconds of waiting."""
        now = workflow.now()
        passed = (now - self._counted_to).total_seconds()
        self._counted_to = now
        if self._waits:
            self.waited_sec += passed
            return
        late = now.timestamp() - self._timer_due if self._timer_due is not None else 0.0
        # While a timer was late, nothing could work on this rollout: the server or all workers were down.
        self._worked_sec += passed - min(late, passed) if late > LATE_SEC else passed

    async def wait_for(self, work: asyncio.Task[Any]) -> bool:
        """Wait for a task to end. Return True if it has, False if the limit is reached first.

        Args:
            work: The task. At the limit, it is not cancelled.
        """
        while not work.done():
            if self._waits:
                # No timer: a rollout may wait for a person for weeks.
                await workflow.wait_condition(lambda: work.done() or not self._waits)
                continue
            self.count()
            left = self.limit_sec - self._worked_sec
            if left <= 0:
                return False
            seconds = max(0.001, min(left, SLICE_SEC))
            self._timer_due = workflow.now().timestamp() + seconds
            await workflow.wait([work], timeout=seconds)
            self.count()
            self._timer_due = None
        return True


def pause_deadline(thing: str) -> AbstractContextManager[None]:
    """Return a context in which the deadline's clock of the running rollout stops.

    Args:
        thing: What the rollout waits for, for display.
    """
    stopped: AbstractContextManager[None] = workflow.instance().pause_deadline(thing)
    return stopped


class Phases:
    """The present phase of a rollout, and the seconds of work in each phase."""

    def __init__(self, deadline: Deadline, *, check_stop: Callable[[], None], on_update: Callable[[], None]) -> None:
        """Start in the phase `plan`.

        Args:
            deadline: The rollout's deadline, whose waiting does not count as work of a phase.
            check_stop: Raises `CancelledError` if the work is to stop.
            on_update: Called after each change that an operator sees in the Web UI.
        """
        self._deadline = deadline
        self._check_stop = check_stop
        self.on_update = on_update
        self._waited_before = 0.0
        self.phase: Phase = "plan"
        self.since: datetime = workflow.now()
        self.timing: dict[str, float] = {}
        """Seconds of work by phase, of the phases before the present one; `wait`: seconds of waiting in all of them."""

    def begin(self, phase: Phase) -> None:
        """Enter a phase of the work, and call `on_update`.

        Raises:
            CancelledError: The work is to stop. The activity before may have succeeded although it was cancelled.
        """
        self._check_stop()
        self.enter(phase)
        self.on_update()

    def enter(self, phase: Phase, rewards: dict[str, float] | None = None) -> None:
        """Record the time of the present phase, enter another one, and update the workflow's search attributes.

        Args:
            phase: The phase to enter.
            rewards: Rewards of the rollout, whose scalar becomes a search attribute; None for none.
        """
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
