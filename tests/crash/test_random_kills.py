"""Worker, server and the provider's own processes killed again and again, at moments that nobody chose."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.counted_task import SETUP, SOLVED, VERIFIED, write_counted_tasks
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    rows,
    submit_job,
)
from support.worlds import everywhere, on_local

from benchflow.jobs import Job

VICTIMS: dict[str, list[tuple[Role, ...]]] = {
    "docker": [("worker",), ("server",), ("worker", "server")],
    "local": [("worker",), ("server",), ("worker", "server"), ("helper",), ("helper", "server")],
}


@everywhere
@pytest.mark.parametrize("kills", [pytest.param(6, marks=pytest.mark.long), pytest.param(40, marks=pytest.mark.soak)])
async def test_jobs_end_as_if_nothing_had_happened(stack: EmbeddedStack, tmp_path: Path, kills: int) -> None:
    chance = chance_of_this_run()
    tasks = write_counted_tasks(tmp_path / "tasks", 8, stack.sandbox, setup_sec=0.5, solve_sec=1.5, verify_sec=0.5)
    jobs: list[Job] = []
    while kills > 0:
        job = await submit_job(stack, tasks, tmp_path / "jobs", f"crash-{len(jobs)}", concurrency=4)
        jobs.append(job)
        ended = asyncio.create_task(job.wait())
        while kills > 0 and not ended.done():
            # Not a wait for anything: the moment of the crash is what is random.
            await asyncio.wait({ended}, timeout=chance.uniform(0.2, 3))
            if not ended.done() and stack.kill(*chance.choice(VICTIMS[stack.sandbox])):
                kills -= 1
        await ended
    for job in jobs:
        assert_each_scored_once(job, stack)
        await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


@on_local
@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.long), pytest.param(40, marks=pytest.mark.soak)])
async def test_a_command_whose_end_nobody_saw_is_not_run_again(
    stack: EmbeddedStack, tmp_path: Path, kills: int
) -> None:
    """A process of the provider's waits for each command. Without it nobody knows how, or whether, the command ended:
    its rollout ends, too, and says so (and would be run again from its root, did the job not forbid it here). What may
    be done again, as after the death of a worker, is done again.
    """
    chance = chance_of_this_run()
    tasks = write_counted_tasks(tmp_path / "tasks", 8, stack.sandbox, setup_sec=0.5, solve_sec=1.5, verify_sec=0.5)
    options = {"concurrency": 4, "retry": {"max_retries": 0}}
    jobs: list[Job] = []
    killed = 0
    while killed < kills:
        job = await submit_job(stack, tasks, tmp_path / "jobs", f"crash-{len(jobs)}", **options)
        jobs.append(job)
        ended = asyncio.create_task(job.wait())
        while not ended.done():
            await asyncio.wait({ended}, timeout=chance.uniform(0.1, 0.6))
            assert stack.world.repeated((SETUP, SOLVED, VERIFIED)) == []
            if killed < kills and (waiters := stack.processes("waiter")):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(waiters), signal.SIGKILL)
                    killed += 1
        await ended
    found = [row for job in jobs for row in rows(job)]
    assert len({row["workflow_id"] for row in found}) == len(found) == len(jobs) * len(tasks)
    scored = [row for row in found if row["status"] == "passed"]
    print(f"\n{len(scored)} of {len(found)} rollouts scored, {killed} kills")
    assert len(found) - len(scored) <= killed
    for row in found:
        if row in scored:
            assert (row["reward"], row["attempt"], row["error"]) == (1.0, 1, None)
        else:
            assert (row["status"], row["error_category"], row["reward"]) == ("errored", "sandbox", None), row
            assert "end was not seen" in row["error"]["message"]
    for job in jobs:
        await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)
