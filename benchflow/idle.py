"""Whether the embedded stack has anything to do: open workflows, schedules, or a client that used it not long ago."""

from __future__ import annotations

import time

from benchflow.paths import StatePaths
from benchflow.stack import StackRecord


class IdleWatch:
    """Tells how long nobody has used a stack. limit_sec: after so many seconds without use or work it is idle."""

    def __init__(self, paths: StatePaths, limit_sec: float) -> None:
        self.limit_sec = limit_sec
        self._paths = paths
        self._last_use: int | None = None
        self._used_at = 0.0

    async def is_idle(self, record: StackRecord) -> bool:
        """Tell whether the stack of this record may stop. Raises what asking its server raises."""
        # Clients touch the file. How long ago that was is counted here, because the wall clock may be set at any time.
        last_use = self._paths.last_used.stat().st_mtime_ns
        if last_use != self._last_use or record.state != "running":
            self._last_use, self._used_at = last_use, time.monotonic()
            return False
        return time.monotonic() - self._used_at > self.limit_sec and not await _has_work(record)


async def _has_work(record: StackRecord) -> bool:
    # Imported late, as the supervisor starts without it.
    from benchflow.temporal import connect, stack_target

    client = await connect(stack_target(record))
    if (await client.count_workflows('ExecutionStatus="Running"')).count:
        return True
    async for schedule in await client.list_schedules():
        if schedule.schedule is not None and not schedule.schedule.state.paused:
            return True
    return False
