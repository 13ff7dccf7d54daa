"""Names that jobs get by themselves: no two of them are one job, however close together they are asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow.contracts import ids
from benchflow.contracts.config import JobConfig
from benchflow.jobs import plan_job

LONG = "a-task-whose-name-" + "is-long-" * 9


@pytest.mark.parametrize("task", ["short", LONG])
def test_jobs_without_a_name_are_as_many_as_are_asked_for(tmp_path: Path, task: str) -> None:
    config = JobConfig(paths=[write_task(tmp_path, task)], jobs_dir=tmp_path / "jobs", sandbox="noop")
    names = [plan_job(config).name for _ in range(50)]
    assert len(set(names)) == 50
    for name in names:
        # `bench job resume` takes it, like every other name.
        assert ids.check_job_name(name) == name
        assert re.fullmatch(r".+-\d{8}-\d{6}-[0-9a-f]{8}", name) and name.startswith(task[:20])


def test_a_name_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    config = JobConfig(paths=[write_task(tmp_path, "t")], jobs_dir=tmp_path / "jobs", sandbox="noop", job_name="mine")
    assert {plan_job(config).id for _ in range(3)} == {plan_job(config).id}
    assert plan_job(config).name == "mine"
