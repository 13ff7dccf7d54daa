"""Rollouts that can't report by themselves, as their job knows them: never started, terminated, or stuck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchflow.contracts.base import Model
from benchflow.contracts.rollout import Failure

MAX_LOST_MESSAGE = 1000
"""Characters of the message in a lost rollout's row: a job may carry thousands of them."""


class LostRollout(Model):
    """A rollout that can't report by itself: it was never started, or its workflow ended without a result."""

    index: int
    attempt: int = 1
    """0: not known, as another run of the job has started it."""

    run_id: str = ""
    """First run of its workflow; empty if it has none, or none that is known."""


class SweepState(Model):
    """Carries what the sweep of a job knows across continue-as-new."""

    due: float
    """When the next one is, workflow time."""

    unknown: list[int] = []
    """Indices of rollouts that the server did not know at the last one."""

    awaited: list[str] = []
    """Workflow ids of attempts that have reported and whose end a retry waits for."""


class LostGroup(Model):
    """Lost rollouts of one cause, whose rows are not yet where the job was submitted."""

    failure: Failure
    """Why: the `error` of their rows."""

    rollouts: list[LostRollout] = []
    """The rollouts that were started."""

    unstarted: list[tuple[int, int]] = []
    """Half-open ranges of indices of those that were not."""

    def each(self) -> Iterator[LostRollout]:
        """Yield all rollouts of the group."""
        yield from self.rollouts
        yield from (LostRollout(index=index) for first, end in self.unstarted for index in range(first, end))


def without(groups: Sequence[LostGroup], index: int) -> list[LostGroup]:
    """Return the groups without the started rollout of this index: a later attempt of it has ended."""
    found = []
    for group in groups:
        rollouts = [rollout for rollout in group.rollouts if rollout.index != index]
        if rollouts or group.unstarted:
            found.append(group.model_copy(update={"rollouts": rollouts}))
    return found


def merged(groups: Sequence[LostGroup], group: LostGroup) -> list[LostGroup]:
    """Return the groups with one more: thousands of rollouts that are lost for one reason carry it once."""
    failure = group.failure.model_copy(update={"message": group.failure.message[:MAX_LOST_MESSAGE], "log_tail": None})
    same = [*(other for other in groups if other.failure == failure), group]
    rollouts = [rollout for one in same for rollout in one.rollouts]
    unstarted: list[tuple[int, int]] = []
    for first, end in (span for one in same for span in one.unstarted):
        if unstarted and unstarted[-1][1] == first:
            unstarted[-1] = (unstarted[-1][0], end)
        else:
            unstarted.append((first, end))
    others = [other for other in groups if other.failure != failure]
    return [*others, LostGroup(failure=failure, rollouts=rollouts, unstarted=unstarted)]
