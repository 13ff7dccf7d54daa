"""Awaits that a cancellation of the workflow does not cut short, and cancellations of other workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.job import OpenRollout

T = TypeVar("T")


async def to_the_end(work: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Await `work` to its end. A cancellation that arrives meanwhile calls `on_cancel`, and is dropped."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Ours, or the work's own: the loop, or `result` below, tells them apart.
            if not task.done():
                on_cancel()
        except Exception:
            # The work's own, which `result` raises below. Any other one is no reason to leave the work alone.
            continue
    return task.result()


async def result_of(activity: workflow.ActivityHandle[Any]) -> Any:
    """Await an activity, which hears of a cancellation. A result that arrives together with one is returned.

    The SDK drops such a result, and what it tells of, a sandbox for example, would be nobody's.
    """
    while True:
        try:
            return await asyncio.shield(activity)
        except asyncio.CancelledError:
            if activity.done():
                return activity.result()
            # Not at once: a result that has arrived needs one more turn of the loop to reach the handle.
            asyncio.get_running_loop().call_soon(activity.cancel)


class Cancellations:
    """The cancellations of a job's rollouts: those that were requested one by one, or all of a cancelled job."""

    def __init__(
        self, requested: Sequence[str], open_: Mapping[int, OpenRollout], is_of_all: Callable[[], bool], at_a_time: int
    ) -> None:
        """Begin or resume.

        Args:
            requested: Workflow ids of rollouts, of those that have not started as well.
            open_: The open rollouts of the job, by index.
            is_of_all: Returns whether the job itself is cancelled.
            at_a_time: How many are sent in one workflow task.
        """
        self._requested = dict.fromkeys(requested)
        self._open = open_
        self._is_of_all = is_of_all
        self._at_a_time = at_a_time
        self._sent: set[tuple[int, int]] = set()  # index and attempt

    @property
    def requested(self) -> list[str]:
        """Return the workflow ids that were requested one by one."""
        return list(self._requested)

    def has(self, id_: str) -> bool:
        """Return whether the cancellation of a rollout was requested."""
        return id_ in self._requested

    def request(self, id_: str, *, limit: int) -> None:
        """Cancel a rollout that runs, or as soon as it does. limit: most requests that are remembered."""
        if len(self._requested) < limit:
            self._requested[id_] = None

    def forget(self, id_: str) -> None:
        """Forget the request of a rollout that has ended."""
        self._requested.pop(id_, None)

    def unsent(self) -> list[OpenRollout]:
        """Return the running rollouts whose cancellation was requested and not sent."""
        started = [rollout for rollout in self._open.values() if rollout.since is not None]
        unsent = [rollout for rollout in started if (rollout.index, rollout.attempt) not in self._sent]
        return [rollout for rollout in unsent if self._is_of_all() or rollout.id in self._requested]

    async def send(self) -> None:
        """Send the cancellations that were requested, and those that are requested meanwhile."""
        while asked := self.unsent():
            self._sent |= {(rollout.index, rollout.attempt) for rollout in asked}
            await cancel_workflows([rollout.id for rollout in asked], self._at_a_time)


async def cancel_workflows(ids: Sequence[str], at_a_time: int) -> None:
    """Cancel other workflows. One that can't be, because it is over, is logged.

    at_a_time: how many, since the commands of one workflow task are one message.
    """
    for start in range(0, len(ids), at_a_time):
        await asyncio.gather(*map(_cancel, ids[start : start + at_a_time]))


async def _cancel(workflow_id: str) -> None:
    try:
        await workflow.get_external_workflow_handle(workflow_id).cancel()
    except Exception as error:
        workflow.logger.info("%s could not be cancelled: %s", workflow_id, error)
