"""Jobs in other directories than they were submitted to, spelt in other ways, or submitted by somebody else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from support.command_line import Bench
from support.stored_jobs import Past, store_job, write_task

from benchflow.contracts.config import JobConfig
from benchflow.jobs.job_plan import plan_job
from benchflow.paths import JobPaths

TASKS = ("one", "two")


@pytest.fixture
def job(tmp_path: Path, state: Path) -> JobPaths:
    """A job of two tasks that has ended."""
    tasks = [write_task(tmp_path / "tasks", name) for name in TASKS]
    past = {name: Past({None: value}) for name, value in zip(TASKS, (1.0, 0.25), strict=True)}
    return JobPaths(asyncio.run(store_job(tasks, tmp_path / "jobs", past, sandbox="noop")))


def directory_of(job: JobPaths, task: str) -> Path:
    (directory,) = job.root.glob(f"{task}__*")
    return directory


LOOKS = {"tree show": "0.25", "tree path": "I want 0.25", "job watch": "I want 0.25"}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["past", "renamed"])
def test_a_rollout_of_a_copied_job_is_found(bench: Bench, job: JobPaths, tmp_path: Path, look: str, name: str) -> None:
    shutil.move(job.root, tmp_path / "elsewhere" / name)
    node = ["n1"] if look == "tree path" else []
    ran = bench(*look.split(), f"{name}/two", *node, "--jobs-dir", tmp_path / "elsewhere")
    assert ran.status == 0, ran.err
    assert LOOKS[look] in ran.out


def test_a_link_in_a_copied_job_leads_nowhere(bench: Bench, job: JobPaths, tmp_path: Path) -> None:
    copied = JobPaths(shutil.copytree(job.root, tmp_path / "elsewhere" / "past"))
    shutil.rmtree(directory_of(copied, "two"))
    (copied.root / directory_of(job, "two").name).symlink_to(directory_of(job, "two"))
    ran = bench("tree", "show", "past/two", "--jobs-dir", tmp_path / "elsewhere")
    assert ran.status == 1 and "through a link" in ran.err


@pytest.mark.parametrize("spelt", ["jobs", "./jobs", "tasks/../jobs", "linked", "linked/../jobs"])
def test_one_directory_of_jobs_is_one_however_it_is_spelt(
    bench: Bench, job: JobPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelt: str
) -> None:
    (tmp_path / "linked").symlink_to("jobs")
    monkeypatch.chdir(tmp_path)
    config = {"paths": [tmp_path / "tasks" / "one"], "sandbox": "noop", "job_name": "past"}
    plans = [plan_job(JobConfig.model_validate(config | {"jobs_dir": jobs})) for jobs in (Path(spelt), job.root.parent)]
    assert plans[0].id == plans[1].id
    assert bench("job", "show", "past", "--jobs-dir", spelt, "--json").json["job"]["id"] == plans[1].id


def test_a_list_says_which_jobs_are_somebody_elses(bench: Bench, job: JobPaths) -> None:
    theirs = JobPaths(shutil.copytree(job.root, job.root.parent / "theirs"))
    theirs.config_mac.unlink()
    summary = bench("job", "show", "past", "--jobs-dir", job.root.parent, "--json").json["summary"]
    theirs.results.touch()
    theirs.summary.write_text(json.dumps(summary | {"job": "past", "mean_reward": 0.99}))
    listed = bench("job", "list", "--jobs-dir", job.root.parent, "--json").json["jobs"]
    assert {row["job"]: row["is_own"] for row in listed} == {"past": True, "theirs": False}
    lines = bench("job", "list", "--jobs-dir", job.root.parent).out.splitlines()
    assert [("not yours" in line) for line in lines if "past" in line or "theirs" in line] == [
        "theirs" in line for line in lines if "past" in line or "theirs" in line
    ]


@pytest.mark.parametrize("by", ["name", "directory"])
@pytest.mark.parametrize("file", ["tree.json", "result.json", "children/n0.0/tree.json"])
def test_a_pipe_in_place_of_a_tree_is_no_tree_that_will_come(bench: Bench, job: JobPaths, by: str, file: str) -> None:
    directory = directory_of(job, "one")
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).unlink(missing_ok=True)
    os.mkfifo(directory / file)
    ran = bench("tree", "show", "past/one" if by == "name" else directory, "--jobs-dir", job.root.parent)
    assert ran.status == 1 and "this is no regular file" in ran.err
