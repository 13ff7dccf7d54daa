"""`--rebuild`: one request a job, which its resumption keeps, and by which builds on this host go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.stored_jobs import write_task

from benchflow.cli.resume import plan_again
from benchflow.cli.submit_request import make_job_config
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import JobSpec, Origin
from benchflow.jobs.identity import claim, list_differences
from benchflow.jobs.job_plan import JobPlan, freeze, plan_job
from benchflow.planes.sandbox.rebuilds import choose_build_key, record_rebuild
from benchflow.store import Store

pytestmark = pytest.mark.usefixtures("state")


def plan(root: Path, **options: Any) -> JobPlan:
    task = root / "tasks" / "one"
    if not task.exists():
        write_task(root / "tasks", "one")
    return plan_job(JobConfig(paths=[task], jobs_dir=root / "jobs", job_name="j", sandbox="noop", **options))


def frozen(planned: JobPlan) -> JobSpec:
    return asyncio.run(freeze(planned, Store.open()))


def test_all_rollouts_of_a_job_have_one_request_and_each_job_its_own(tmp_path: Path) -> None:
    spec, other = frozen(plan(tmp_path, rebuild=True)), frozen(plan(tmp_path, rebuild=True))
    origin = Origin(host_id="host", job_dir="jobs/j")
    assert spec.rollout("id", origin, 0).run.rebuild == spec.run.rebuild
    assert None not in (spec.run.rebuild, other.run.rebuild)
    assert spec.run.rebuild != other.run.rebuild
    assert frozen(plan(tmp_path)).run.rebuild is None


def test_a_job_that_is_submitted_again_or_resumed_keeps_its_request(tmp_path: Path) -> None:
    planned = plan(tmp_path, rebuild=True)
    spec = frozen(planned)
    claim(planned.directory, spec)
    assert frozen(plan(tmp_path, rebuild=True)) == spec
    assert frozen(plan_again("j", tmp_path / "jobs", concurrency=None, context_root=None)) == spec


def test_whether_images_are_built_anew_is_a_difference_and_the_request_is_none(tmp_path: Path) -> None:
    spec, other = frozen(plan(tmp_path, rebuild=True)), frozen(plan(tmp_path, rebuild=True))
    assert list_differences(spec, other) == []
    assert [line.partition(":")[0] for line in list_differences(spec, frozen(plan(tmp_path)))] == ["run.rebuild"]


def test_it_is_asked_for_by_an_option_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("paths: [t]\nrebuild: true\n")
    assert make_job_config(paths=[], config=file)[0].rebuild
    assert make_job_config(paths=[tmp_path], config=None, rebuild=True)[0].rebuild
    assert not make_job_config(paths=[tmp_path], config=None)[0].rebuild


def test_a_request_has_a_build_of_its_own_and_the_last_one_is_everybodys() -> None:
    identity = "a" * 64
    assert choose_build_key(identity, None) == identity
    keys = {choose_build_key(identity, request) for request in (None, "one", "two")}
    assert len(keys) == 3
    record_rebuild(identity, "one")
    record_rebuild(identity, "two")
    assert choose_build_key(identity, None) == choose_build_key(identity, "two") != choose_build_key(identity, "one")
    assert choose_build_key("b" * 64, None) == "b" * 64
