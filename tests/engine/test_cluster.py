"""A cluster: submitted here, run by a worker with a state directory and a store of its own, fetched back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ConfigError, GatewayUnavailableError
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.gateway.gateway_process import stop_gateway
from benchflow.host import read_host_id
from benchflow.jobs import Job, plan_job, submit
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until

StartHost = Callable[..., StatePaths]


@pytest.fixture
def cluster(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as a submitting host; returns its jobs directory."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "submitter"))
    monkeypatch.setenv("BENCHFLOW_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", server)
    monkeypatch.delenv("TEMPORAL_PROFILE", raising=False)
    return tmp_path / "jobs"


@pytest.fixture
def start_host(cluster: Path, tmp_path: Path) -> Iterator[StartHost]:
    """Start a worker process as another host would."""
    with contextlib.ExitStack() as started:

        def start(name: str, **variables: str) -> StatePaths:
            state = tmp_path / name
            env = os.environ | {"BENCHFLOW_STATE_DIR": str(state)} | variables
            log = started.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen([sys.executable, "-m", "benchflow.worker"], env=env, stdout=log, stderr=log)
            started.callback(process.wait, 60)
            started.callback(process.terminate)
            return StatePaths(state)

        yield start


def write_task(root: Path, name: str, environment: str = "") -> Path:
    task = root / "tasks" / name
    for directory in ("environment", "tests", "solution"):
        (task / directory).mkdir(parents=True)
    (task / "task.toml").write_text(f'[environment]\ndocker_image = "nothing"\n{environment}\n')
    (task / "instruction.md").write_text("Play.\n")
    for script in ("tests/test.sh", "solution/solve.sh"):
        (task / script).write_text("#!/bin/sh\n")
    return task


async def run(jobs: Path, *tasks: Path, **options: object) -> Job:
    config = {"paths": list(tasks), "jobs_dir": jobs, "sandbox": "noop", "job_name": "far"} | options
    job = await submit(plan_job(JobConfig.model_validate(config)))
    await job.wait()
    return job


async def test_results_come_back_from_another_host(cluster: Path, start_host: StartHost, tmp_path: Path) -> None:
    other = start_host("host-b")
    job = await run(cluster, write_task(tmp_path, "one"), write_task(tmp_path, "two"), repeats=2)
    results = job.results()
    assert [(result.task_name, result.repeat, result.status) for result in results] == [
        ("one", 0, "passed"), ("one", 1, "passed"), ("two", 0, "passed"), ("two", 1, "passed")
    ]  # fmt: skip
    assert (
        {result.sandbox["host"] for result in results} == {read_host_id(other)} != {read_host_id(StatePaths.default())}
    )
    for result in results:
        root = Path(str(result.directory))
        assert root.parent == cluster / "far"
        assert {path.name for path in root.iterdir()} >= {
            "config.json", "result.json", "timing.json", "prompts.json", "rewards.jsonl", "tree.json",
            "agent", "trajectory", "verifier", "artifacts", "trainer",
        }  # fmt: skip
        assert (root / "trajectory" / "acp_trajectory.jsonl").read_text().count("\n") == 2
    summary = json.loads(job.directory.summary.read_text())
    assert (summary["total"], summary["passed"]) == (4, 4)
    assert len(job.directory.results.read_text().splitlines()) == 4
    assert await job.fetch() == 0
    # What was fetched by one that could not sum it up any more is summed up by the next.
    job.directory.summary.unlink()
    assert await job.fetch() == 0
    assert json.loads(job.directory.summary.read_text()) == summary


@pytest.mark.long
async def test_a_second_submit_of_a_finished_job_runs_nothing(
    cluster: Path, start_host: StartHost, tmp_path: Path
) -> None:
    start_host("host-b")
    task = write_task(tmp_path, "one")
    before = (await run(cluster, task)).results()
    again = await run(cluster, task)
    assert again.started == 0
    assert again.results() == before


async def test_the_workers_environment_is_the_only_source_of_secrets(
    cluster: Path, start_host: StartHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_host("host-b", BF_ONLY_THERE="value")
    monkeypatch.setenv("BF_ONLY_HERE", "value")
    tasks = [
        write_task(tmp_path, "there", 'env = { KEY = "${BF_ONLY_THERE}" }'),
        write_task(tmp_path, "here", 'env = { KEY = "${BF_ONLY_HERE}" }'),
    ]
    by_name: dict[str, RolloutResult] = {r.task_name: r for r in (await run(cluster, *tasks)).results()}
    assert by_name["there"].status == "passed"
    assert (by_name["here"].status, by_name["here"].rewards) == ("errored", None)
    error = by_name["here"].error
    assert error is not None
    assert (error.type, error.category, error.phase) == ("MissingSecretError", "secret", "plan")
    assert "BF_ONLY_HERE" in error.message and "worker" in error.message


@pytest.mark.long
async def test_a_worker_starts_the_gateway_of_its_host_again(start_host: StartHost) -> None:
    paths = start_host("here")
    paths.gateway.rollouts.mkdir(parents=True)
    (paths.gateway.rollouts / "one.json").write_text("{}")

    async def pid_of_another(pid: int | None) -> int | None:
        try:
            found = (await GatewayClient(paths, patience=0.0).ping()).pid
        except GatewayUnavailableError:
            return None
        return found if found != pid else None

    first = await until(lambda: pid_of_another(None))
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await until(lambda: pid_of_another(first))
    await stop_gateway(paths)


async def test_a_store_that_only_the_submitter_sees_is_refused(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    plan = plan_job(JobConfig(paths=[write_task(tmp_path, "one")], jobs_dir=cluster, sandbox="noop"))
    with pytest.raises(ConfigError, match="local directory"):
        await submit(plan)


async def test_a_rollout_cancelled_on_another_host_has_a_row_too(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE", str(worker.context.paths.store))
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(worker.root / "submitter"))
    worker.provider.held = True
    job = await worker.submit(repeats=2)
    victim, other = await worker.in_turn(2)
    await job.cancel_rollout(victim)
    await worker.progress(job, lambda p: p.counts.cancelled == 1)
    worker.provider.release_all()
    results = {result.workflow_id: result for result in await worker.results(job)}
    assert (results[victim].status, results[victim].rewards) == ("cancelled", None)
    assert results[other].status == "passed"
    assert {result.sandbox["host"] for result in results.values()} == {worker.context.host_id}
    assert read_host_id(StatePaths.default()) != worker.context.host_id


async def test_what_is_run_again_replaces_what_was_fetched(
    cluster: Path, start_host: StartHost, tmp_path: Path
) -> None:
    start_host("host-b")
    task = write_task(tmp_path, "one")
    (before,) = (await run(cluster, task)).results()
    config = {"paths": [task], "jobs_dir": cluster, "sandbox": "noop", "job_name": "far"}
    again = await submit(plan_job(JobConfig.model_validate(config)), again=("passed",))
    await again.wait()
    (after,) = again.results()
    assert again.started == 1
    assert after.run_id != before.run_id
    assert (Path(str(after.directory)) / "attempts" / "1" / "result.json").is_file()
