"""Links in a job's directory that somebody else made: nothing is written, removed or read where they lead."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stored_jobs import files_below, store_job, write_task

from benchflow.contracts import ids
from benchflow.errors import ResultFileError
from benchflow.jobs.identity import check_results
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.rescoring import RescoringRequest, rescore
from benchflow.results.summary import read_results, read_spec
from benchflow.results.write import append_row, begin_run

NAME = "new"


@pytest.fixture
def job(tmp_path: Path, state: Path) -> JobPaths:
    task = write_task(tmp_path / "tasks", "one")
    return JobPaths(asyncio.run(store_job([task], tmp_path / "jobs", sandbox="noop")))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory elsewhere whose files have the names that the engine gives its own."""
    directory = tmp_path / "outside"
    for name in (
        "verifier/reward.txt",
        "judge/answer.json",
        "rewards.jsonl",
        "result.json",
        "new.json",
        "1/config.json",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("theirs\n")
    return directory


def rollout_of(job: JobPaths) -> RolloutPaths:
    (directory,) = [path for path in job.root.iterdir() if path.is_dir()]
    return RolloutPaths(directory)


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def rescored(job: JobPaths) -> None:
    """Score the job again; a rollout that could not be is an error, too."""
    found = asyncio.run(rescore(job.root, RescoringRequest(name=NAME)))
    for rollout in found.rollouts:
        if rollout.error is not None:
            raise ResultFileError(rollout.error.message, file=rollout.error.file)


REFUSED = [
    "rescored",
    f"rescored/{NAME}",
    f"rescored/{NAME}/result.json",
    "artifacts",
    "verifier",
    "evidence",
    "judge",
    "trajectory",
]
"""Where a rollout has a link."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_rollout_whose_directories_are_links_is_not_scored(job: JobPaths, outside: Path, name: str) -> None:
    place = rollout_of(job).root / name
    if place.is_dir():
        place.rename(place.with_name("before"))
    link(place, outside)
    before = files_below(outside)
    with pytest.raises(ResultFileError, match=r"link|no regular file"):
        rescored(job)
    assert files_below(outside) == before


def test_the_summary_of_new_scores_is_not_written_through_a_link(job: JobPaths, outside: Path) -> None:
    link(job.root / "rescored", outside)
    with pytest.raises(ResultFileError, match="link"):
        rescored(job)
    assert (outside / "new.json").read_text() == "theirs\n"


@pytest.mark.parametrize("name", ["../../../outside", "a/../../..", "/", "..", "a\0b"])
def test_a_step_is_named_like_one_directory(job: JobPaths, outside: Path, name: str) -> None:
    paths = rollout_of(job)
    result = json.loads(paths.result.read_text())
    result["steps"][0]["step"]["name"] = name
    paths.result.write_text(json.dumps(result))
    with pytest.raises(ResultFileError, match="must be"):
        rescored(job)
    assert (outside / "verifier/reward.txt").is_file()


# --- a job that is resumed ---------------------------------------------------------------------------------


def of_rollout(name: str) -> Callable[[JobPaths], Path]:
    return lambda job: rollout_of(job).root / name


PLACES: dict[str, Callable[[JobPaths], Path]] = {
    "the rollout": lambda job: rollout_of(job).root,
    "its earlier attempts": of_rollout("attempts"),
    "the rows": lambda job: job.results,
    "the groups": lambda job: job.groups,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_job_with_links_where_results_go_is_not_resumed(job: JobPaths, outside: Path, place: str) -> None:
    spec, job_id = read_spec(job), ids.job_id(job.root.name, str(job.root.parent))
    check_results(spec, job_id, job, [(0, 1)])
    at = PLACES[place](job)
    if at.exists():
        at.rename(job.root.parent / "before")
    link(at, outside)
    with pytest.raises(ResultFileError):
        check_results(spec, job_id, job, [(0, 1)])


def test_a_row_is_not_added_through_a_link_and_not_to_a_pipe(job: JobPaths, outside: Path) -> None:
    (result,) = read_results(job)
    link(job.results, outside / "result.json")
    with pytest.raises(ResultFileError, match="no regular file"):
        append_row(job, result)
    job.results.unlink()
    os.mkfifo(job.results)
    with pytest.raises(ResultFileError, match="no regular file"):
        append_row(job, result)
    job.results.unlink()
    append_row(job, result)
    assert (outside / "result.json").read_text() == "theirs\n"
    assert len(job.results.read_text().splitlines()) == 1


def test_what_lies_where_a_run_begins_is_put_aside_with_or_without_a_configuration(
    tmp_path: Path, outside: Path
) -> None:
    paths = RolloutPaths(tmp_path / "rollout")
    link(paths.trajectory, outside / "result.json")
    link(paths.agent, outside)
    begin_run(paths, {"run_id": "one"})
    assert sorted(path.name for path in paths.root.iterdir()) == ["attempts", "config.json"]
    begin_run(paths, {"run_id": "one"})
    assert [path.name for path in (paths.root / "attempts").iterdir()] == ["1"]


def test_a_configuration_that_a_power_cut_has_left_empty_is_put_aside(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path / "rollout")
    paths.root.mkdir()
    paths.config.touch()
    begin_run(paths, {"run_id": "two"})
    assert json.loads(paths.config.read_text()) == {"run_id": "two"}
    assert (paths.root / "attempts" / "1" / "config.json").read_bytes() == b""


def test_nothing_is_put_aside_through_a_link(tmp_path: Path, outside: Path) -> None:
    paths = RolloutPaths(tmp_path / "rollout")
    begin_run(paths, {"run_id": "one"})
    link(paths.root / "attempts", outside)
    before = files_below(outside)
    with pytest.raises(ResultFileError, match="link"):
        begin_run(paths, {"run_id": "two"})
    assert files_below(outside) == before
