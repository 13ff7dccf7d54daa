"""Commands that are jobs: an interrupt cancels the job, and waits until it has tidied up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from benchflow.errors import JobNotFoundError

if TYPE_CHECKING:
    from benchflow.jobs import Job

R = TypeVar("R")


def run_in_job(work: Callable[[Callable[[Job], None]], Awaitable[R]]) -> R:
    """Run a command that starts a job, and return its result. SIGTERM is an interrupt, too.

    work: is given a function that it calls with its job.
    """

    async def run() -> R:
        task = asyncio.current_task()
        started: list[Job] = []
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await work(started.append)
        except asyncio.CancelledError:
            for job in started:
                with suppress(JobNotFoundError):
                    await job.cancel()
                    await job.wait()
            raise

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
