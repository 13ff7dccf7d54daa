"""A worker of newer code takes over while agents act."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.counted_task import SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack
from support.packages import changed_package
from support.scored import (
    assert_each_scored_once,
    assert_nothing_is_left,
    assert_recovered_soon,
    assert_second_submit_does_nothing,
    submit_job,
)
from support.worlds import seldom_on_docker

from benchflow import stack as stacks
from benchflow.testing.waiting import until

pytestmark = pytest.mark.crash


@seldom_on_docker
async def test_newer_code_drains_the_older(
    stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of them begin with the newer one.
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox)
    job = await submit_job(stack, tasks, tmp_path / "jobs", repeats=2, concurrency=2)
    older = await stack.worker()
    await until(lambda: stack.marked(SOLVED, at_least=2))
    newer = changed_package(tmp_path / "newer", "log.py", ('"""', '"""A changed word. '))
    monkeypatch.setattr(stacks, "wanted_here", lambda: newer)
    record = await asyncio.to_thread(stacks.ensure)
    assert record.wanted == newer
    assert record.restarts.get("worker", 0) == 0
    worker = await stack.worker()
    assert worker != older
    assert f"PYTHONPATH={newer.pythonpath}".encode() in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    assert older not in stack.processes("worker")
    await job.wait()
    assert_recovered_soon(job, "execute", 3, "worker replaced in execute, 4 rollouts")
    assert_each_scored_once(job, stack)
    await assert_second_submit_does_nothing(job)
    assert_nothing_is_left(stack)
