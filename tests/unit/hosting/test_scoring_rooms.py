"""Rooms in which stored rollouts are verified again."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stored_jobs import store_job, write_task

from benchflow.host import SlotOwner
from benchflow.hosting.stored_step import make_labeller
from benchflow.results.stored_rollouts import read_rollout


@pytest.mark.parametrize(("deadline_sec", "expected_sec"), [(600.0, 600), (65 * 6 * 3600.0, 6 * 3600)])
async def test_the_label_of_a_room_is_not_the_deadline_of_a_whole_tree(
    tmp_path: Path, state: Path, deadline_sec: float, expected_sec: int
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], tmp_path / "jobs", sandbox="noop")
    spec = read_rollout(next(job.glob("one__*"))).spec
    run = spec.run.model_copy(update={"deadline_sec": deadline_sec})
    rollout = SimpleNamespace(host=SimpleNamespace(stack="s"), spec=spec.model_copy(update={"run": run}))
    before = int(time.time())
    labels = make_labeller(SlotOwner("w", "r"))(rollout)  # type: ignore[arg-type]
    assert before + expected_sec <= int(labels["benchflow.deadline"]) <= time.time() + expected_sec
