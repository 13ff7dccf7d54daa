"""Commands that start jobs: their jobs are shown as by `submit`; an interrupt cancels them and waits for their end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from benchflow.cli.terminal import Screen
    from benchflow.jobs import Job

R = TypeVar("R")


def run_in_job(work: Callable[[Callable[[Job], None]], Awaitable[R]], screen: Screen) -> R:
    """Run a command that starts a job, and return its result. On a terminal, show the job's board meanwhile.

    Args:
        work: The command. Its argument is a callback, which it calls with each job that it starts.
        screen: Console for the Web UI's address and the board.

    Raises:
        KeyboardInterrupt: The command was interrupted, by SIGINT or SIGTERM; its jobs are cancelled and have ended.
    """
    from benchflow.cli.job_report import show_ui
    from benchflow.cli.watch import follow, poll_progress

    async def run() -> R:
        task = asyncio.current_task()
        started: list[Job] = []
        boards: list[asyncio.Task[None]] = []
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

        def show(job: Job) -> None:
            started.append(job)
            show_ui(job.engine, job.id, screen)
            if screen.is_terminal:
                boards.append(asyncio.create_task(show_board(job, boards[-1:])))

        async def show_board(job: Job, earlier: list[asyncio.Task[None]]) -> None:
            # A terminal has one board at a time.
            for board in earlier:
                board.cancel()
                await asyncio.wait([board])
            await follow(job, screen, poll_progress(job))

        try:
            return await work(show)
        except asyncio.CancelledError:
            for job in started:
                await job.abort()
            raise
        finally:
            for board in boards:
                board.cancel()
            await asyncio.gather(*boards, return_exceptions=True)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
