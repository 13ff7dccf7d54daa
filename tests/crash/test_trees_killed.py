"""Trees of verified steps whose worker and server are killed as they grow: they end like undisturbed ones.

A tree of turns, in a world, is that of `test_office_trees_killed`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.growing_task import assert_is_whole, branch_after, step, write_growing_task
from support.scored import assert_nothing_is_left, finish, submit_job
from support.worlds import everywhere, seldom_on_docker

from benchflow.jobs import Job
from benchflow.paths import RolloutPaths

VICTIMS: list[tuple[Role, ...]] = [("worker",), ("server",), ("worker", "server")]


def assert_is_the_undisturbed_tree(job: Job, steps: int) -> None:
    (result,) = job.results()
    assert result.error is None, result.error
    assert (result.reward, result.reward_kind) == (1.0, "value")
    assert_is_whole(RolloutPaths(Path(str(result.directory))), steps, range(steps))


@seldom_on_docker
async def test_a_tree_in_mid_branch_grows_on_when_its_worker_is_killed(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    task = write_growing_task(tmp_path / "tasks", 2, held=[0, 1])
    job = await submit_job(stack, [task], tmp_path / "jobs", branch=branch_after([0, 1]))
    # Two children, and then their four: at each level one of them ends while nobody listens.
    for number, acting in ((0, 2), (1, 4)):
        first, *others = await stack.in_step(step(number), acting)
        victims = stack.kill("worker")
        stack.let_go(step(number), [first])
        await stack.worker(other_than=victims)
        stack.let_go(step(number), others)
    await finish(job)
    assert_is_the_undisturbed_tree(job, 2)
    await assert_nothing_is_left(stack)


@everywhere
@pytest.mark.parametrize("kills", [pytest.param(5, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.soak)])
async def test_a_tree_grows_as_if_nothing_had_happened(stack: EmbeddedStack, tmp_path: Path, kills: int) -> None:
    chance = chance_of_this_run()
    task = write_growing_task(tmp_path / "tasks", 3)
    number = 0
    while kills > 0:
        job = await submit_job(stack, [task], tmp_path / "jobs", f"tree-{number}", branch=branch_after([0, 1, 2]))
        number += 1
        ended = asyncio.create_task(job.wait())
        while kills > 0 and not ended.done():
            # Not a wait for anything: the moment of the crash is what is random.
            await asyncio.wait({ended}, timeout=chance.uniform(0.5, 5))
            if not ended.done() and stack.kill(*chance.choice(VICTIMS)):
                kills -= 1
        await ended
        assert_is_the_undisturbed_tree(job, 3)
    await assert_nothing_is_left(stack)
