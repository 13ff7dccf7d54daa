"""What jobs leave on a host: it goes when it is old, and never while a workflow is open that may need it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.activities.leftovers import BULK, Leftovers, find_oldest_start
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.store import Store
from benchflow.testing.waiting import until


@pytest.fixture
def left(worker: InProcessWorker) -> list[Path]:
    """Results that were delivered, an unpacked task, and a message's bulk."""
    paths = worker.context.paths
    files = [paths.rollouts / "job_old-0" / "play__a" / "result.json", paths.tasks / ("0" * 32) / "task.toml"]
    files += [paths.store / BULK / "ab" / "abc"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    # What lay in a sandbox may be dated by its agent.
    os.utime(files[0], (4e9, 4e9))
    return [files[0].parents[1], files[1].parent, files[2]]


def remover(worker: InProcessWorker, retain_days: float) -> Leftovers:
    return Leftovers(replace(worker.context, options=WorkerOptions(leftovers_retain_days=retain_days)))


async def test_leftovers_go_when_they_are_old_and_no_open_workflow_is_older(
    worker: InProcessWorker, left: list[Path]
) -> None:
    assert await remover(worker, 1).remove() == 0
    assert all(place.exists() for place in left)
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    # Of the task that an open job uses, the directory is newer than its workflows.
    used = [place for place in worker.context.paths.tasks.iterdir() if place.is_dir() and place not in left]
    assert used
    assert await remover(worker, 0).remove() == 3
    assert not any(place.exists() for place in left)
    assert all(place.exists() for place in used)
    worker.provider.release_all()
    assert [result.status for result in await worker.results(job)] == ["passed"]


async def test_what_an_open_workflow_may_need_stays_however_old_it_is(
    worker: InProcessWorker, left: list[Path]
) -> None:
    worker.provider.held = True
    await worker.submit()
    await worker.in_turn(1)
    for place in left:
        os.utime(place)
    assert await remover(worker, 0).remove() == 0
    assert all(place.exists() for place in left)


async def test_a_workflow_that_continued_as_new_began_with_its_first_run(worker: InProcessWorker) -> None:
    worker.options(history_limit=20, start_batch=1)
    worker.provider.held = True
    before = datetime.now(UTC).timestamp()
    job = await worker.submit(repeats=6, concurrency=2)
    handle = job.engine.client.get_workflow_handle(job.id)
    await worker.in_turn(2)
    first = await handle.describe()

    async def has_continued() -> bool:
        worker.provider.release()
        return (await handle.describe()).run_id != first.run_id

    await until(has_continued)
    began = await find_oldest_start(worker.context.client)
    assert before - 1 <= began <= first.start_time.timestamp()


async def test_a_store_elsewhere_is_left_to_its_own_rules(
    worker: InProcessWorker, tmp_path: Path, left: list[Path]
) -> None:
    elsewhere = replace(worker.context, store=Store.open(str(tmp_path / "elsewhere")))
    assert await Leftovers(replace(elsewhere, options=WorkerOptions(leftovers_retain_days=0))).remove() == 2
    assert left[2].exists()
