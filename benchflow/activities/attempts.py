"""The work of activities as asyncio tasks that outlive single attempts of the activity.

While the server is away, or after this worker was frozen, no heartbeat arrives, and the SDK ends the attempt by itself.
The task runs on: it serves an agent's requests or waits for a verifier, and the next attempt in this process joins it.
A task ends early for three reasons only: its workflow has cancelled it, the server reports that its run is closed, or
this worker stops, in which case the next worker continues from the state on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import structlog
from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from benchflow.contracts.fixed_durations import DESCRIBE_SEC, NEXT_WORKER
from benchflow.errors import StackError
from benchflow.hosting.interruption import set_cancellation_check
from benchflow.planes.sandbox.timeouts import awake_sleep
from benchflow.workflow_executions import is_not_found

log = structlog.get_logger("benchflow.activities")

_Key = tuple[str, str]


@dataclass
class _Work:
    """The work of one activity, which all its attempts in this process share."""

    info: activity.Info
    """Info of the newest attempt."""
    limit: asyncio.Task[None]
    """Timer: done when this process has run for the start-to-close timeout of the newest attempt."""
    task: asyncio.Task[Any] = field(init=False)
    """Task that runs the work."""
    is_cancelled: bool = False
    """Whether the workflow has cancelled it, or its run is closed: no later attempt continues it."""
    attempts: int = 0
    """Number of attempts of this process that wait for the work."""
    watch: asyncio.Task[None] | None = None
    """Task that polls the server while no attempt waits for the work; None before the first."""


class OngoingWork:
    """The work of all activities of one worker process, by activity.

    Args:
        client: Connection to the Temporal server.
        identity: Worker identity of this process on the server.
        poll_sec: Seconds between two polls of the server about work that no attempt waits for.
    """

    def __init__(self, client: Client, identity: str, poll_sec: float) -> None:
        """Make it."""
        self._client = client
        self._identity = identity
        self._poll_sec = poll_sec
        self._works: dict[_Key, _Work] = {}

    @property
    def unattended(self) -> int:
        """Return the number of unfinished tasks that no attempt waits for."""
        return sum(not work.attempts and not work.task.done() for work in self._works.values())

    async def attempt(self, run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Start the work of the running activity, or join that of an earlier attempt, and return its result.

        Args:
            run: Starts the work. Not called if an earlier attempt of this process has started it.

        Raises:
            ApplicationError: The server lost contact with the attempt, or this worker stops. Both are retried.
            asyncio.CancelledError: The workflow has cancelled the activity.
        """
        info = activity.info()
        key = (info.workflow_run_id or "", info.activity_id)
        limit_sec = info.start_to_close_timeout.total_seconds() if info.start_to_close_timeout else None
        limit = asyncio.create_task(awake_sleep(limit_sec))
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = _Work(info, limit)
            work.task = asyncio.create_task(_run(work, run))
        else:
            work.limit.cancel()
            work.info, work.limit = info, limit
        work.attempts += 1
        try:
            return await self._await_result(work)
        finally:
            work.attempts -= 1
            if work.task.done():
                self._works.pop(key, None)
                work.limit.cancel()
            elif not work.attempts and (work.watch is None or work.watch.done()):
                work.watch = asyncio.create_task(self._watch(key, work))

    async def _await_result(self, work: _Work) -> Any:
        """Wait for the result of `work`. A cancellation ends the work, or only this attempt, depending on its cause."""
        while not work.task.done():
            try:
                await asyncio.wait([work.task])
            except asyncio.CancelledError:
                details = activity.cancellation_details()
                if work.is_cancelled:
                    # The work is ending already: a second cancellation would interrupt its cleanup.
                    continue
                if details is not None and details.cancel_requested:
                    work.is_cancelled = True
                elif not (details is not None and details.worker_shutdown) and not work.limit.done():
                    raise ApplicationError(
                        "the server lost contact with this attempt; the next one joins its work",
                        type=StackError.__name__,
                        next_retry_delay=NEXT_WORKER,
                    ) from None
                work.task.cancel()
        if work.task.cancelled() and not work.is_cancelled:
            raise ApplicationError(
                "the worker stops; another goes on", type=StackError.__name__, next_retry_delay=NEXT_WORKER
            )
        return work.task.result()

    async def _watch(self, key: _Key, work: _Work) -> None:
        """Poll the server about work that no attempt waits for, until one joins it; end the work if none can."""
        while not work.attempts:
            match await self._ask_state(work):
                case "closed":
                    work.is_cancelled = True
                    break
                case "elsewhere":
                    break
                case "unknown" if work.task.done():
                    # A late attempt finds the state that it needs on disk.
                    break
            if work.limit.done():
                break
            await asyncio.sleep(self._poll_sec)
        else:
            return
        work.task.cancel()
        await asyncio.wait([work.task])
        # Only now: an attempt that came earlier would have started the same work a second time, beside this one.
        if self._works.get(key) is work:
            del self._works[key]
            work.limit.cancel()
        if not work.task.cancelled() and (error := work.task.exception()) is not None:
            log.info("work that nobody waits for failed", activity=work.info.activity_type, error=str(error))

    async def _ask_state(self, work: _Work) -> Literal["awaited", "closed", "elsewhere", "unknown"]:
        """Ask the server whether an attempt in this process may still join `work`.

        Returns:
            `awaited`: yes, or the server can't be asked. `closed`: the workflow run has ended. `elsewhere`: an attempt
            runs in another process, or the activity is no longer pending. `unknown`: the server has no such run.
        """
        info = work.info
        handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        try:
            description = await handle.describe(rpc_timeout=timedelta(seconds=DESCRIBE_SEC))
        except RPCError as error:
            return "unknown" if is_not_found(error) else "awaited"
        if description.status != WorkflowExecutionStatus.RUNNING:
            return "closed"
        for pending in description.raw_description.pending_activities:
            if pending.activity_id == info.activity_id:
                is_started = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                is_other = is_started and pending.attempt > info.attempt
                return "elsewhere" if is_other and pending.last_worker_identity != self._identity else "awaited"
        return "elsewhere"

    async def close(self) -> None:
        """Cancel all unfinished work: the next worker continues it."""
        works = self._works.values()
        tasks = [task for work in works for task in (work.task, work.limit, work.watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(work: _Work, run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run the work, in which `interruption.is_cancelled` returns whether it is cancelled for good."""
    set_cancellation_check(lambda: work.is_cancelled)
    return await run()
