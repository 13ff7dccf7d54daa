"""Files of a stored job that somebody made to hurt its readers: they are refused at once, by name."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import Bench, bench
from support.stored_jobs import store_job, write_task

from benchflow.contracts.rollout_records import RolloutTree
from benchflow.errors import ResultFileError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.summary import read_results, read_spec
from benchflow.stored_files import MAX_DOCUMENT, read_stored
from benchflow.trajectories.follow import follow
from benchflow.trajectories.journal import read_journal
from benchflow.trajectories.stored import load_tree, read_model

__all__ = ["bench"]

pytestmark = pytest.mark.usefixtures("state")

HUGE = 100 * 1024**3


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """End a test that waits for a pipe."""

    def end(signum: int, frame: object) -> None:
        raise AssertionError("a reader waits for a file")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def job(tmp_path: Path, state: Path) -> JobPaths:
    task = write_task(tmp_path / "tasks", "one")
    return JobPaths(asyncio.run(store_job([task], tmp_path / "jobs", sandbox="noop")))


def rollout_of(job: JobPaths) -> RolloutPaths:
    (directory,) = [path for path in job.root.iterdir() if path.is_dir()]
    return RolloutPaths(directory)


def put_pipe(file: Path) -> None:
    os.mkfifo(file)


def put_sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, HUGE)


def put_link(file: Path) -> None:
    file.symlink_to("/dev/zero")


def put_directory(file: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize("put", [put_pipe, put_sparse, put_link, put_directory])
def test_what_is_no_file_of_a_job_is_refused_by_its_name(job: JobPaths, put: Callable[[Path], None]) -> None:
    rollout = rollout_of(job)
    readers: dict[Path, Callable[[], object]] = {
        rollout.trajectory: lambda: read_journal(rollout.trajectory),
        rollout.tree: lambda: read_model(RolloutTree, rollout.tree),
        rollout.result: lambda: read_results(job),
        job.config: lambda: read_spec(job),
    }
    for file, read in readers.items():
        read()
        file.unlink()
        put(file)
        with pytest.raises(ResultFileError) as caught:
            read()
        assert caught.value.file == str(file)
        assert "is larger than" in caught.value.message or "no regular file" in caught.value.message


def test_no_command_that_looks_at_a_job_waits_for_its_files(bench: Bench, job: JobPaths) -> None:
    rollout = rollout_of(job)
    name = f"past/{rollout.root.name}"
    looks = {
        rollout.trajectory: ("job", "watch", name),
        rollout.result: ("results", "past"),
        job.config: ("job", "show", "past"),
    }
    for file, look in looks.items():
        file.unlink()
        put_pipe(file)
        ran = bench(*look, "--jobs-dir", job.root.parent)
        assert (ran.status, f"{file}: this is no regular file" in ran.err) == (1, True), ran
    assert bench("job", "list", "--jobs-dir", job.root.parent).status == 0


async def test_a_line_without_an_end_is_no_event(tmp_path: Path) -> None:
    put_sparse(tmp_path / "lines")
    with pytest.raises(ResultFileError, match="no event"):
        async for _ in follow(tmp_path / "lines", over=lambda: True):
            pass


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_stored(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(ResultFileError, match="larger than"):
        read_stored(tmp_path / "file", limit=4)
    assert MAX_DOCUMENT < HUGE


def test_a_link_in_place_of_a_rollouts_directory_is_refused(job: JobPaths) -> None:
    rollout = rollout_of(job).root
    elsewhere = job.root.parent / "elsewhere"
    rollout.rename(elsewhere)
    rollout.symlink_to(elsewhere)
    with pytest.raises(ResultFileError, match="through a link") as caught:
        read_results(job)
    assert caught.value.file == str(rollout)


def test_a_tree_whose_children_lead_back_to_it_is_refused(job: JobPaths) -> None:
    rollout = rollout_of(job).root
    (rollout / "children").mkdir()
    (rollout / "children" / "n0.0").symlink_to("..")
    with pytest.raises(ResultFileError, match="through a link"):
        load_tree(rollout)
