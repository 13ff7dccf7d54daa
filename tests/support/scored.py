"""What every crash must leave behind: each rollout scored once, and nothing else."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.embedded import EmbeddedStack

from benchflow import stack as stacks
from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import Phase
from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until


async def submit_job(
    stack: EmbeddedStack, tasks: Sequence[Path], jobs_dir: Path, name: str = "crash", **options: Any
) -> Job:
    """options: fields of `JobConfig`."""
    again = options.pop("again", ())
    given = {"paths": list(tasks), "jobs_dir": jobs_dir, "job_name": name, "sandbox": stack.sandbox, "preflight": False}
    config = JobConfig.model_validate(given | options)
    return await submit(plan_job(config), again=again)


async def in_phase(job: Job, phase: Phase) -> list[str]:
    """The open rollouts that are in this phase now."""
    # On a busy machine a look may take longer than it may, and then there is no answer.
    progress = await until(job.progress)
    assert progress is not None
    states = {rollout: await until(functools.partial(job.rollout_progress, rollout)) for rollout in progress.open}
    return [rollout for rollout, state in states.items() if state is not None and state.phase == phase]


async def finish(job: Job) -> None:
    """Wait until the job is over: a job that nobody goes on with fails the test before a heartbeat timeout helps it."""
    async with asyncio.timeout(300):
        await job.wait()


def rows(job: Job) -> list[dict[str, Any]]:
    # The last line may just be written.
    return [json.loads(line) for line in job.directory.results.read_text().split("\n")[:-1]]


def assert_each_scored_once(
    job: Job, stack: EmbeddedStack, *, with_earlier_runs: int = 0, in_clean_room: bool = False
) -> None:
    """Check that each step of each rollout was done once.

    Args:
        job: Of counted tasks; it is over.
        stack: On which it ran.
        with_earlier_runs: Of how many rollouts an earlier run was set aside.
        in_clean_room: Whether verifiers have sandboxes of their own, of whose counts the reward is all that is kept.
    """
    found = rows(job)
    assert len(found) == job.spec.total
    assert len({row["workflow_id"] for row in found}) == job.spec.total
    for row in found:
        said = f"{row['rollout_name']}: {row['error'] or row['verifier_error'] or row}"
        assert (row["status"], row["reward"], row["attempt"], row["error"]) == ("passed", 1.0, 1, None), said
    for result in job.results():
        paths = RolloutPaths(Path(str(result.directory)))
        with_earlier_runs -= (paths.root / "attempts").exists()
        assert result.sandbox["provisions"] == 1
        for name in ("set-up", "solved", "verified") if not in_clean_room else ():
            assert (paths.artifacts / name).read_text() == f"{name}\n"
        events = [json.loads(line)["type"] for line in paths.trajectory.read_text().splitlines()]
        assert events == ["user_message", "oracle"]
        assert len(paths.rewards.read_text().splitlines()) == 1
    assert with_earlier_runs == 0
    # A second sandbox of one name would have started counting from nothing.
    twice = {name: count for name, count in Counter(stack.world.started).items() if count > 1}
    assert not twice


async def assert_second_submit_does_nothing(job: Job) -> None:
    before = _files(job.directory.root)
    again = await submit(plan_job(_config(job)))
    assert again.started == 0
    assert not await again.is_running()
    await again.wait()
    assert _files(job.directory.root) == before


async def assert_nothing_is_left(stack: EmbeddedStack) -> None:
    """Stop the stack; then nothing of it may be left."""
    await asyncio.to_thread(stacks.stop_stack, stack.paths)
    left: list[str] = []

    async def nothing() -> bool:
        left[:] = [f"process {pid}" for pid in stack.processes()] + await stack.world.leftovers()
        return not left

    try:
        # The kernel takes some things away in its own time; nobody else does any more.
        await until(nothing, seconds=60, every=0.1)
    except AssertionError:
        pytest.fail(f"left behind: {left}")


def _config(job: Job) -> JobConfig:
    return JobConfig(
        paths=[Path(str(task.source)) for task in job.spec.tasks],
        agents=job.spec.agents,
        jobs_dir=job.directory.root.parent,
        sandbox=job.spec.run.sandbox,
        job_name=job.name,
        repeats=job.spec.repeats,
        retry=job.spec.retry,
        deadline_sec=job.spec.run.deadline_sec,
    )


def _files(root: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time and content."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(p): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}
