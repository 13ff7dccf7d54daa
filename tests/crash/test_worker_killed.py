"""The worker ends: by kill -9 in each phase, told to stop, or for newer code. The next one goes on where it was."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.counted_task import BUILT, SETUP, SOLVED, VERIFIED, write_counted_task, write_counted_tasks
from support.embedded import EmbeddedStack
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_second_submit_does_nothing,
    finish,
    in_phase,
    submit_job,
)
from support.worlds import Seen, everywhere, on_docker, seldom_on_docker

import benchflow
from benchflow import stack as stacks
from benchflow.contracts.rollout_records import Phase
from benchflow.stack import WorkerWanted
from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("handed_over")

STEPS: dict[Phase, str] = {"provision": SETUP, "execute": SOLVED, "verify": VERIFIED}


@seldom_on_docker
async def test_killed_in_each_phase_it_has_every_step_done_once(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 3, stack.sandbox, held=STEPS.values())
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    for phase, step in STEPS.items():
        first, *others = await stack.in_step(step, 3)
        assert len(await in_phase(job, phase)) == 3
        victim = await stack.worker()
        records = [*stack.paths.running.glob(f"{victim}-*/*.token")]
        assert len(records) >= 3
        # What a worker is given a moment before it can write it down, only the server knows.
        records[0].unlink()
        stack.kill("worker")
        # One step ends while nobody listens, and the others when the next worker does.
        stack.let_go(step, [first])
        await stack.worker(other_than=[victim])
        stack.let_go(step, others)
    await finish(job)
    assert not any(stack.paths.running.glob(f"{victim}-*"))
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


@pytest.mark.long
@everywhere
async def test_killed_during_a_build(stack: EmbeddedStack, tmp_path: Path) -> None:
    task = write_counted_task(tmp_path, "built", stack.sandbox, build=True, held=[BUILT])
    mark = (task / "environment" / "Dockerfile").read_text().split()[3]
    try:
        job = await submit_job(stack, [task], tmp_path / "jobs", repeats=2)
        abandoned = await until(lambda: stack.world.builds(mark, begun=True))
        assert await in_phase(job, "provision")
        stack.kill("worker")

        def others() -> list[Seen]:
            return [build for build in stack.world.builds(mark, begun=True) if build not in abandoned]

        # Of the two rollouts one builds, and the other waits for it.
        (again,) = await until(others)
        stack.let_go(BUILT, [again])
        await finish(job)
        assert_each_scored_once(job, stack)
        await assert_second_submit_does_nothing(job)
        await assert_nothing_is_left(stack)
        # A daemon gives up a build whose client is gone in its own time.
        await until(lambda: stack.world.builds(mark) == [])
    finally:
        await stack.world.remove_built(mark)


@pytest.mark.long
@on_docker
async def test_told_to_stop_twice(stack: EmbeddedStack, tmp_path: Path) -> None:
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox, held=[SOLVED])
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    for _ in range(2):
        await stack.in_step(SOLVED, 4)
        await stack.strike("worker", with_signal=signal.SIGTERM)
    stack.let_go(SOLVED)
    await finish(job)
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


@pytest.mark.long
@on_docker
async def test_newer_code_drains_the_older(
    stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of them begin with the newer one.
    tasks = write_counted_tasks(tmp_path / "tasks", 4, stack.sandbox, held=[SOLVED])
    job = await submit_job(stack, tasks, tmp_path / "jobs", concurrency=2)
    older = await stack.worker()
    acting = await stack.in_step(SOLVED, 2)
    newer = copied_package(tmp_path / "newer")
    monkeypatch.setattr(stacks, "describe_own_worker", lambda: newer)
    record = await asyncio.to_thread(stacks.ensure_stack)
    assert record.wanted == newer
    assert record.restarts.get("worker", 0) == 0
    worker = await stack.worker()
    assert worker != older
    assert f"PYTHONPATH={newer.pythonpath}".encode() in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    assert older not in stack.processes("worker")
    assert await stack.in_step(SOLVED, 2) == acting
    stack.let_go(SOLVED)

    def others() -> bool:
        return len([seen for seen in stack.world.with_file(SOLVED) if seen not in acting]) == 2

    await until(others)
    stack.let_go(SOLVED)
    await finish(job)
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    await assert_nothing_is_left(stack)


def copied_package(root: Path) -> WorkerWanted:
    """Copy this package, and return the worker that runs the copy: by its digest another one than that of this."""
    source = Path(benchflow.__file__).parent
    shutil.copytree(source, root / "benchflow", ignore=shutil.ignore_patterns("*.pyc.*"))
    # Where the package was never installed, its providers are declared there.
    shutil.copy(source.parent / "pyproject.toml", root)
    return WorkerWanted(python=sys.executable, digest="newer", pythonpath=str(root))
