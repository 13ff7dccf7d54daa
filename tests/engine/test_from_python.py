"""One rollout from Python: several ways to ask for it, one result, which says all that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path

import pytest
from support.in_process_worker import InProcessWorker

import benchflow as bf
from benchflow.contracts.rollout_records import RolloutResult

Way = Callable[[Path, Path], Awaitable[RolloutResult]]


def by_config(task: Path, jobs: Path) -> Awaitable[RolloutResult]:
    return bf.run(bf.RolloutConfig(task_path=task, environment="noop", jobs_dir=jobs, job_name="a-way"))


def by_agent_and_environment(task: Path, jobs: Path) -> Awaitable[RolloutResult]:
    environment = bf.Environment.from_task(task, sandbox="noop")
    return bf.run(bf.Agent("oracle"), environment, bf.RuntimeConfig(jobs_dir=jobs, job_name="a-way"))


async def by_rollout(task: Path, jobs: Path) -> RolloutResult:
    config = bf.RolloutConfig(task_path=task, environment="noop", jobs_dir=jobs, job_name="a-way")
    rollout = await bf.Rollout.create(config)
    assert rollout.name == "a-way"
    return await rollout.run()


def by_runtime(task: Path, jobs: Path) -> Awaitable[RolloutResult]:
    environment = bf.Environment.from_task(str(task), sandbox="noop")
    return bf.Runtime(
        environment, bf.Agent("oracle"), config=bf.RuntimeConfig(jobs_dir=jobs, job_name="a-way")
    ).execute()


async def test_the_first_way_of_asking_runs_it_and_every_other_finds_its_result(worker: InProcessWorker) -> None:
    task, jobs = worker.task("small"), worker.root / "jobs"
    first = await by_config(task, jobs)
    assert isinstance(first, bf.RolloutResult)
    assert first.rewards == {"reward": 1.0}
    assert (first.status, first.error, first.task_name, first.agent) == ("passed", None, "small", "oracle")
    assert Path(str(first.directory)).parent == jobs / "a-way"
    for way in (by_config, by_agent_and_environment, by_rollout, by_runtime):
        assert await way(task, jobs) == first


@pytest.mark.parametrize("way", [by_agent_and_environment, by_rollout, by_runtime])
async def test_every_way_runs_it(worker: InProcessWorker, way: Way) -> None:
    result = await way(worker.task("small"), worker.root / "jobs")
    assert (result.status, result.rewards) == ("passed", {"reward": 1.0})


async def test_a_result_says_all_that_is_known_of_the_rollout(worker: InProcessWorker) -> None:
    jobs = worker.root / "jobs"
    result = await by_config(worker.task("small"), jobs)
    assert result.reward == 1.0 and result.reward_kind == "measured"
    assert result.job_name == "a-way"
    assert result.workflow_id.startswith("job/a-way-") and result.workflow_id.endswith("/r/small/oracle/0")
    assert result.rollout_name.startswith("small__") and result.directory == str(jobs / "a-way" / result.rollout_name)
    assert (result.n_prompts, result.n_tool_calls, result.repeat, result.attempt) == (1, 0, 0, 1)
    assert result.started_at.tzinfo == UTC and result.started_at <= result.finished_at
    assert {"plan", "provision", "connect", "execute", "verify"} <= result.timing.keys()
    assert all(seconds >= 0 for seconds in result.timing.values())
    assert result.tree == {"nodes": 2, "leaves": 1}
    assert (result.n_input_tokens, result.n_output_tokens, result.cost_usd) == (None, None, None)
    assert next(line["type"] for line in result.trajectory) == "user_message"
    assert len(result.task_digest) == 64
    assert bf.RunResult is bf.RolloutResult


async def test_a_failed_rollout_is_a_result_not_an_exception(worker: InProcessWorker) -> None:
    task = worker.task("odd", "[solution]\ntimeout_sec = 5\n")
    (task / "solution" / "solve.sh").unlink()
    result = await by_config(task, worker.root / "jobs")
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None and result.error.type == "UnsupportedFeatureError"


async def test_runs_without_a_name_at_the_same_time_are_as_many_rollouts(worker: InProcessWorker) -> None:
    config = bf.RolloutConfig(task_path=worker.task("small"), environment="noop", jobs_dir=worker.root / "jobs")
    results = await asyncio.gather(*(bf.run(config) for _ in range(6)))
    assert {result.status for result in results} == {"passed"}
    assert len({result.workflow_id for result in results}) == len({result.directory for result in results}) == 6
