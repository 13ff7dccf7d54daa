"""Rollouts that cannot report by themselves, as their job knows them: never started, terminated, or stuck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchflow.contracts.base import Model
from benchflow.contracts.rollout_records import Failure

MAX_LOST_MESSAGE = 1000
"""Maximum number of characters of the message in a lost rollout's row: a job may carry thousands of them."""


class LostRollout(Model):
    """A rollout that cannot report by itself: never started, stuck, or ended without a result."""

    index: int
    """Index of the rollout in its job."""

    attempt: int = 1
    """Number of the attempt, from 1; 0 if it is not known, because another run of the job has started the rollout."""

    run_id: str = ""
    """Run id of the first run of its workflow; empty if it has no workflow, or the id is not known."""


class SweepState(Model):
    """State of a job's sweep that is carried across continue-as-new."""

    due: float
    """Workflow time of the next sweep, in seconds."""

    unknown: list[int] = []
    """Indices of rollouts that the server did not know at the last sweep: one that it does not know twice is lost."""

    awaited: list[str] = []
    """Workflow ids of attempts that have reported and whose end a retry awaits; stuck ones are terminated."""


class LostGroup(Model):
    """Lost rollouts of one cause that have no row yet at the job's origin."""

    failure: Failure
    """Why they were lost: the `error` of their rows. `merged` cuts its message and drops its log tail."""

    rollouts: list[LostRollout] = []
    """Rollouts that were started."""

    unstarted: list[tuple[int, int]] = []
    """Half-open ranges of the indices of rollouts that were never started."""

    def each(self) -> Iterator[LostRollout]:
        """Yield all rollouts of the group."""
        yield from self.rollouts
        yield from (LostRollout(index=index) for first, end in self.unstarted for index in range(first, end))


def without(groups: Sequence[LostGroup], index: int) -> list[LostGroup]:
    """Return the groups without a started rollout, of which a later attempt has ended.

    Args:
        groups: The lost rollouts of a job. Groups that become empty are left out.
        index: Index of the rollout.
    """
    found = []
    for group in groups:
        rollouts = [rollout for rollout in group.rollouts if rollout.index != index]
        if rollouts or group.unstarted:
            found.append(group.model_copy(update={"rollouts": rollouts}))
    return found


def merged(groups: Sequence[LostGroup], group: LostGroup) -> list[LostGroup]:
    """Return the groups with one more, merged with those of the same failure.

    Thousands of rollouts that are lost for one reason carry that reason once. Its message is cut to `MAX_LOST_MESSAGE`.

    Args:
        groups: The lost rollouts of a job so far, their failures cut already.
        group: Further lost rollouts.
    """
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
