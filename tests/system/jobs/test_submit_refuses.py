"""What cannot work is refused before anything is started: a typed error with file, key and remedy."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running import job_config
from support.task_writer import write_task

from benchflow import errors, stack
from benchflow.jobs import plan_job, submit
from benchflow.paths import StatePaths
from benchflow.planes import sandbox
from benchflow.testing.waiting import until


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path, "small")


@pytest.fixture
def alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory in which nothing was ever started."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
        monkeypatch.delenv(name, raising=False)
    return state


def assert_nothing_started(state: Path) -> None:
    assert stack.read_record(StatePaths(state)) is None


def mounted(directory: Path, size: str) -> Iterator[Path]:
    """A file system of this size, which needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    directory.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode()}")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "1m")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "64m")


async def test_a_full_disk_under_the_jobs_directory(alone: Path, task: Path, small_disk: Path) -> None:
    with pytest.raises(errors.DiskFullError, match="KiB are free") as caught:
        await submit(plan_job(job_config([task], small_disk / "jobs", sandbox="noop")))
    assert caught.value.file == str(small_disk / "jobs")
    assert (caught.value.key, caught.value.category) == ("jobs_dir", "store")
    assert "--jobs-dir" in str(caught.value.remedy)
    assert_nothing_started(alone)


@pytest.mark.local
async def test_a_job_that_runs_is_attached_to_although_its_disk_is_full(
    disk: Path, engine: Path, tmp_path: Path
) -> None:
    task = write_task(tmp_path, "waits", solve="sleep 1000\n", dockerfile="FROM debian:bookworm-slim\n")
    plan = plan_job(job_config([task], disk / "jobs", sandbox="local", job_name="waits"))
    job = await submit(plan)

    async def works() -> bool:
        progress = await job.progress()
        return progress is not None and progress.open_count == 1

    await until(works)
    (disk / "junk").write_bytes(bytes(36 << 20))
    assert (await submit(plan)).attached
    (disk / "junk").unlink()
    await job.cancel()
    await job.wait()
    assert [result.status for result in job.results()] == ["cancelled"]


@pytest.mark.local
async def test_a_job_that_is_over_is_not_started_again_on_a_full_disk(disk: Path, engine: Path, tmp_path: Path) -> None:
    plan = plan_job(job_config([write_task(tmp_path, "small")], disk / "jobs", sandbox="noop", job_name="over"))
    job = await submit(plan)
    await job.wait()
    (result,) = job.results()
    (disk / "junk").write_bytes(bytes(36 << 20))
    assert (await submit(plan)).started == 0
    with pytest.raises(errors.DiskFullError, match="KiB are free"):
        await submit(plan, again=[result.status])


async def test_a_jobs_directory_that_is_a_file(alone: Path, task: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("not a directory")
    with pytest.raises(errors.StoreError) as caught:
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert str(tmp_path / "jobs") in str(caught.value)
    assert_nothing_started(alone)


async def test_no_docker_daemon(alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    # Providers are made once a process, and this one is to look for its daemon anew.
    monkeypatch.setattr(sandbox, "_made", {})
    with pytest.raises(errors.SandboxUnavailableError) as caught:
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="docker")))
    assert "Docker" in caught.value.message
    assert caught.value.remedy
    assert_nothing_started(alone)
    assert list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize("variable", [stack.PORT_VARIABLE, stack.UI_PORT_VARIABLE])
async def test_a_taken_port_for_the_stack(
    alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv(variable, str(port))
        with pytest.raises(errors.StackError, match=f"port {port} is taken") as caught:
            await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert caught.value.key == variable
    assert caught.value.remedy
    assert_nothing_started(alone)


@pytest.mark.parametrize("port", ["http", "0", "70000", "-1"])
async def test_a_port_that_is_none(
    alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    monkeypatch.setenv(stack.PORT_VARIABLE, port)
    with pytest.raises(errors.ConfigError, match="is not a port"):
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert_nothing_started(alone)


async def test_a_local_store_with_a_server_elsewhere(
    alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    with pytest.raises(errors.ConfigError, match="local directory") as caught:
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert caught.value.key == "BENCHFLOW_STORE"
    assert "s3://" in str(caught.value.remedy)


async def test_a_server_that_does_not_answer(
    alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free}")
    with pytest.raises(errors.ServerUnavailableError, match=str(free)) as caught:
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert "TEMPORAL_ADDRESS" in str(caught.value.remedy)


async def test_a_profile_that_does_not_exist(
    alone: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "nowhere")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "absent.toml"))
    with pytest.raises(errors.BenchFlowError) as caught:
        await submit(plan_job(job_config([task], tmp_path / "jobs", sandbox="noop")))
    assert caught.value.remedy


def test_a_task_without_an_oracle_for_the_oracle(task: Path, tmp_path: Path) -> None:
    (task / "solution" / "solve.sh").unlink()
    (task / "solution").rmdir()
    with pytest.raises(errors.TaskError, match="no oracle") as caught:
        plan_job(job_config([task], tmp_path / "jobs", sandbox="noop"))
    assert "solve.sh" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agents": ["oracle", "oracle"]}, "'oracle' is given twice"),
        ({"include": ["other*"]}, "no task is left"),
        ({"exclude": ["*"]}, "no task is left"),
        ({"sandbox": "cloud"}, "no sandbox provider 'cloud'"),
    ],
)
def test_a_request_that_contradicts_itself(task: Path, tmp_path: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(errors.ConfigError, match=says) as caught:
        plan_job(job_config([task], tmp_path / "jobs", **({"sandbox": "noop"} | options)))
    assert caught.value.remedy


def test_two_tasks_of_one_name(task: Path, tmp_path: Path) -> None:
    twin = write_task(tmp_path / "other", "small")
    with pytest.raises(errors.ConfigError, match="'small' is given twice"):
        plan_job(job_config([task, twin], tmp_path / "jobs", sandbox="noop"))
