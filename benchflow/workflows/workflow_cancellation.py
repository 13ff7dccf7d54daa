"""Awaits that a cancellation of the workflow does not interrupt, and cancellations of other workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts.job import OpenRollout

T = TypeVar("T")


async def run_to_end(work: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Await `work` to its end, whatever is cancelled meanwhile, and return its result or raise its error.

    Args:
        work: Coroutine or task.
        on_cancel: Called for each cancellation of the caller, which is then dropped.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # The caller was cancelled, or the work itself: in the latter case it is done, and `result` raises below.
            if not task.done():
                on_cancel()
        except Exception:
            # An error of the work, which `result` raises below. Any other error is no reason to abandon the work.
            continue
    return task.result()


async def await_result(activity: workflow.ActivityHandle[Any]) -> Any:
    """Await an activity and return its result. A cancellation of the caller is passed on to the activity.

    A result that arrives together with a cancellation is returned. The SDK would drop it, and a sandbox, for example,
    that the activity has made would be an orphan.

    Args:
        activity: Handle of the started activity.

    Raises:
        ActivityError: The activity has failed, or was cancelled.
    """
    while True:
        try:
            return await asyncio.shield(activity)
        except asyncio.CancelledError:
            if activity.done():
                return activity.result()
            # Not at once: a result that has arrived needs one more iteration of the event loop to reach the handle.
            asyncio.get_running_loop().call_soon(activity.cancel)


class Cancellations:
    """Cancellations of a job's rollouts: of single rollouts on request, or of all when the job is cancelled."""

    def __init__(
        self, requested: Sequence[str], open_: Mapping[int, OpenRollout], is_of_all: Callable[[], bool], at_a_time: int
    ) -> None:
        """Make the list of cancellations, empty or with the requests of the workflow's last run.

        Args:
            requested: Workflow ids of the rollouts to cancel, some of which may not have started yet.
            open_: Open rollouts of the job by index: the job's own mapping, not a copy.
            is_of_all: Returns whether the job itself is cancelled.
            at_a_time: Maximum number of cancellations sent in one workflow task.
        """
        self._requested = dict.fromkeys(requested)
        self._open = open_
        self._is_of_all = is_of_all
        self._at_a_time = at_a_time
        self._sent: set[tuple[int, int]] = set()  # index and attempt

    @property
    def requested(self) -> list[str]:
        """Return the workflow ids of single rollouts to cancel, to be carried across continue-as-new."""
        return list(self._requested)

    def has(self, id_: str) -> bool:
        """Return whether the cancellation of this single rollout was requested, by its workflow id."""
        return id_ in self._requested

    def request(self, id_: str, *, limit: int) -> None:
        """Request the cancellation of a rollout, whether it runs or has yet to start. `send` sends it. Idempotent.

        Args:
            id_: Workflow id of the rollout.
            limit: Maximum number of requests to retain; beyond it, the request is dropped.
        """
        if len(self._requested) < limit:
            self._requested[id_] = None

    def forget(self, id_: str) -> None:
        """Forget the request to cancel a rollout, because it has ended; one that was not requested is ignored."""
        self._requested.pop(id_, None)

    def list_unsent(self) -> list[OpenRollout]:
        """Return the running rollouts whose cancellation is due and was not sent to their present attempt."""
        started = [rollout for rollout in self._open.values() if rollout.since is not None]
        unsent = [rollout for rollout in started if (rollout.index, rollout.attempt) not in self._sent]
        return [rollout for rollout in unsent if self._is_of_all() or rollout.id in self._requested]

    async def send(self) -> None:
        """Send all due cancellations, once for each attempt, and those that become due meanwhile."""
        while asked := self.list_unsent():
            self._sent |= {(rollout.index, rollout.attempt) for rollout in asked}
            await cancel_workflows([rollout.id for rollout in asked], self._at_a_time)


async def cancel_workflows(ids: Sequence[str], at_a_time: int) -> None:
    """Request the cancellation of other workflows. A failure, e.g. because a workflow has ended, is logged.

    Args:
        ids: Workflow ids.
        at_a_time: Maximum number per workflow task, whose commands are one message of limited size to the server.
    """
    for start in range(0, len(ids), at_a_time):
        await asyncio.gather(*map(_cancel, ids[start : start + at_a_time]))


async def _cancel(workflow_id: str) -> None:
    """Request the cancellation of one workflow; log a failure."""
    try:
        await workflow.get_external_workflow_handle(workflow_id).cancel()
    except Exception as error:
        workflow.logger.info("%s could not be cancelled: %s", workflow_id, error)
