"""Idle check of the embedded stack: it is in use by open workflows, active schedules, or a client's recent request."""

from __future__ import annotations

import time

from benchflow.paths import StatePaths
from benchflow.stack import StackRecord


class IdleWatch:
    """Detects that a stack has been idle for a given time."""

    def __init__(self, paths: StatePaths, limit_sec: float) -> None:
        """Start watching.

        Args:
            paths: State directory of the stack.
            limit_sec: Seconds without use or open work after which the stack is idle.
        """
        self.limit_sec = limit_sec
        self._paths = paths
        self._last_use: int | None = None
        self._used_at = 0.0

    async def is_idle(self, record: StackRecord) -> bool:
        """Return whether the stack of this record may stop. Raise if its server cannot be queried."""
        # Clients touch the file. Its age is measured by the monotonic clock: the wall clock may be set at any time.
        last_use = self._paths.last_used.stat().st_mtime_ns
        if last_use != self._last_use or record.state != "running":
            self._last_use, self._used_at = last_use, time.monotonic()
            return False
        return time.monotonic() - self._used_at > self.limit_sec and not await _has_work(record)


async def _has_work(record: StackRecord) -> bool:
    # Imported late, so that the supervisor starts without it.
    from benchflow.temporal import connect, make_stack_target

    client = await connect(make_stack_target(record))
    if (await client.count_workflows('ExecutionStatus="Running"')).count:
        return True
    async for schedule in await client.list_schedules():
        if schedule.schedule is not None and not schedule.schedule.state.paused:
            return True
    return False
