"""Processes die while stored rollouts are scored again: each is verified once, and nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from support.counted_task import VERIFIED, enough
from support.embedded import EmbeddedStack
from support.scored import assert_nothing_is_left, finish, submit_job
from support.stored_jobs import write_task
from support.worlds import everywhere

from benchflow.rescoring import RescoredRollout, RescoringRequest, rescore

pytestmark = everywhere

_TEST = f"""echo verified >> {VERIFIED}
until [ -e {enough(VERIFIED)} ]; do sleep 0.1; done
if [ "$(wc -l < {VERIFIED})" -eq 1 ]; then cat answer; else echo 0; fi > /logs/verifier/reward.txt
"""
"""A verifier that gives the answer if it has run once in its sandbox."""


async def test_killed_while_verifiers_run_again(handed_over: None, stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name, test=_TEST) for name in ("one", "two")]
    job = await submit_job(stack, tasks, tmp_path / "jobs", keep="workspace")
    await stack.in_step(VERIFIED, 2)
    stack.let_go(VERIFIED)
    await finish(job)
    started = len(stack.world.started)

    told: list[RescoredRollout] = []
    scoring = asyncio.create_task(
        rescore(
            job.directory.root,
            RescoringRequest(name="mine"),
            on_update=lambda rollout, done, total: told.append(rollout),
        )
    )
    first, second = await stack.in_step(VERIFIED, 2)
    victims = stack.kill("worker")
    # One verifier ends while nobody listens, the other when the next worker does.
    stack.let_go(VERIFIED, [first])
    await stack.worker(other_than=victims)
    stack.let_go(VERIFIED, [second])
    found = await scoring
    assert [(each.outcome, each.rewards, each.steps[0].verifier) for each in found.rollouts] == [
        ("unchanged", {"reward": 1.0}, "ran")
    ] * 2
    assert len(told) == 2
    rooms = Counter(name for name in stack.world.started[started:] if name.startswith("bf-"))
    assert len(rooms) == 2 and {*rooms.values()} == {1}, rooms
    await assert_nothing_is_left(stack)
    # What is complete is not done again.
    again = await rescore(job.directory.root, RescoringRequest(name="mine"))
    assert again.rollouts == found.rollouts
    assert len(stack.world.started) == started + 2


async def test_a_scoring_whose_client_is_gone_goes_on(stack: EmbeddedStack, tmp_path: Path) -> None:
    job = await submit_job(
        stack, [write_task(tmp_path / "tasks", "one", test=_TEST)], tmp_path / "jobs", keep="workspace"
    )
    await stack.in_step(VERIFIED, 1)
    stack.let_go(VERIFIED)
    await finish(job)
    client = asyncio.create_task(rescore(job.directory.root, RescoringRequest(name="mine")))
    await stack.in_step(VERIFIED, 1)
    client.cancel()
    await asyncio.wait([client])
    attached = asyncio.create_task(rescore(job.directory.root, RescoringRequest(name="mine")))
    stack.let_go(VERIFIED)
    [record] = (await attached).rollouts
    assert (record.outcome, record.rewards) == ("unchanged", {"reward": 1.0})
    await assert_nothing_is_left(stack)
