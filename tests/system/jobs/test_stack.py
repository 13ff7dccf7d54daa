"""The embedded stack as its users meet it: one for all, gone when told or when idle, back when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow import stack
from benchflow.contracts.config import JobConfig
from benchflow.errors import StackError
from benchflow.jobs import open_job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until


@pytest.fixture
def own(state: Path) -> Iterator[StatePaths]:
    """A stack of this test's own; whatever runs of it in the end is stopped."""
    paths = StatePaths(state)
    yield paths
    stack.stop(paths)


def test_those_who_ask_at_the_same_time_get_the_same_stack(own: StatePaths) -> None:
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda _: stack.ensure(own), range(4)))
    assert len({record.supervisor.pid for record in records}) == 1


def test_it_keeps_its_ports_when_it_comes_back(own: StatePaths) -> None:
    before = stack.ensure(own)
    assert stack.stop(own)
    after = stack.ensure(own)
    assert (before.port, before.ui_port) == (after.port, after.ui_port)
    assert before.supervisor != after.supervisor


def test_it_stops_by_itself_when_nothing_is_open_and_nobody_uses_it(
    own: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STACK_IDLE_SEC", "1")
    record = stack.ensure(own)
    asyncio.run(until(lambda: not record.supervisor.alive))
    assert record.server is not None
    assert not record.server.alive


@pytest.mark.docker
async def test_who_waits_for_a_job_is_told_when_the_stack_is_stopped_and_can_come_back(
    own: StatePaths, tmp_path: Path
) -> None:
    task = write_task(tmp_path, solve="sleep 3; echo done > /root/answer\n")
    job = await submit(plan_job(JobConfig(paths=[task], jobs_dir=tmp_path / "jobs", job_name="long")))
    waiting = asyncio.create_task(job.wait())
    await asyncio.to_thread(stack.stop, own)
    with pytest.raises(StackError, match="was stopped"):
        await asyncio.wait_for(waiting, 120)
    assert stack.running(own) is None
    again = await open_job("long", tmp_path / "jobs")
    await asyncio.wait_for(again.wait(), 300)
    assert [(result.reward, result.attempt) for result in again.results()] == [(1.0, 1)]
