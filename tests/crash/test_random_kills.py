"""Processes are killed and frozen, and disks full, again and again, at moments that nobody chose."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
from support.agent_world import write_task
from support.counted_task import SETUP, SOLVED, VERIFIED, write_counted_tasks
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.growing_task import assert_is_whole, branch_after, write_growing_task
from support.model_world import conversation, policy, runs, says
from support.outages import Kind, clock_stepped, last, outage
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    rows,
    submit_job,
)
from support.worlds import everywhere, on_local

from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.scripted_model import ScriptedModel

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


BLOWS = 80
"""Of the mixture: after these the jobs come to their end undisturbed."""

CLOCK_VARIABLE = "BENCHFLOW_SOAK_CLOCK"
"""Environment variable that, when it is 1, has the mixture step the clock of this machine, for everybody on it."""

CALLS = 10
"""Commands that the model of the mixture asks for, one in each of its answers."""


@pytest.mark.soak
@everywhere
async def test_an_outage_mixture_leaves_what_an_undisturbed_run_leaves(
    outages_noticed_soon: None, policy_agent: None, disk: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    chance = chance_of_this_run()
    tasks, jobs_dir = tmp_path / "tasks", tmp_path / "jobs"
    times = {"setup_sec": 0.5, "solve_sec": 3, "verify_sec": 1}
    counted = write_counted_tasks(tasks, 30, stack.sandbox, **times)
    in_rooms = write_counted_tasks(tasks / "rooms", 10, stack.sandbox, in_clean_room=True, **times)
    lines = " ".join(map(str, range(CALLS)))
    check = f"if [ \"$(echo $(cat lines))\" = '{lines}' ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    calling = write_task(tasks, "calling", test=f"cd /app\n{check}")
    replies = [runs(f"echo {number} >> lines", delay=0.5) for number in range(CALLS)]
    with ScriptedModel(conversation(*replies, says())) as model:
        oracles = [
            await submit_job(stack, counted, jobs_dir, "shared", concurrency=4),
            await submit_job(stack, in_rooms, jobs_dir, "rooms", concurrency=2),
        ]
        agents = await submit_job(
            stack, [calling], jobs_dir, "calling", agents=[policy(model)], repeats=60, concurrency=4
        )
        growing = write_growing_task(tasks, 3)
        branch = branch_after([0, 1, 2])
        trees = await submit_job(stack, [growing], jobs_dir, "trees", repeats=5, concurrency=1, branch=branch)
        jobs = [*oracles, agents, trees]
        ended = asyncio.gather(*(job.wait() for job in jobs))
        try:
            for _ in range(BLOWS):
                # Not a wait for anything: when there is a blow, and how long it lasts, is what is random.
                await asyncio.wait({ended}, timeout=chance.uniform(1, 5))
                if ended.done():
                    break
                await strike(stack, chance)
            await ended
        finally:
            ended.cancel()
    for job in oracles:
        assert_each_scored_once(job, stack, in_clean_room=job.name == "rooms")
    assert [(row["status"], row["reward"], row["attempt"], row["error"]) for row in rows(agents)] == [
        ("passed", 1.0, 1, None)
    ] * 60
    found = trees.results()
    assert [(tree.error, tree.reward, tree.reward_kind) for tree in found] == [(None, 1.0, "value")] * 5
    for tree in found:
        assert_is_whole(RolloutPaths(Path(str(tree.directory))), 3, [0, 1, 2])
    for job in jobs:
        found_rows = rows(job)
        assert len({row["workflow_id"] for row in found_rows}) == len(found_rows) == job.spec.total
    await assert_nothing_is_left(stack)


async def strike(stack: EmbeddedStack, chance: random.Random) -> None:
    """Do one thing, and say which, for whoever looks for what a failure came from."""
    kills = [*VICTIMS[stack.sandbox], ("supervisor",), ("gateway",)]
    kind = chance.choice(["kill", "kill", "clock", *get_args(Kind)])
    seconds = chance.choice([1.0, 3.0, 8.0, 15.0])
    if kind == "kill":
        roles = chance.choice(kills)
        print("killed", *roles, stack.kill(*roles))
    elif kind == "clock":
        by = chance.uniform(-600, 600)
        if os.environ.get(CLOCK_VARIABLE) == "1":
            print(f"clock stepped by {by:.0f} s for {seconds:g} s")
            with clock_stepped(by):
                await last(seconds)
    else:
        print(kind, f"for {seconds:g} s")
        async with outage(stack, kind):
            await last(seconds)


@on_local
@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.long), pytest.param(40, marks=pytest.mark.soak)])
async def test_a_command_whose_end_nobody_saw_is_not_run_again(
    stack: EmbeddedStack, tmp_path: Path, kills: int
) -> None:
    """Kill the provider's processes that wait for commands.

    Without one nobody knows how, or whether, its command ended: its rollout ends, too, and says so (and would be run
    again from its root, did the job not forbid it here). Whatever may be repeated, as after the death of a worker, is.
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
