"""What must be done even while the workflow is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio import workflow

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
