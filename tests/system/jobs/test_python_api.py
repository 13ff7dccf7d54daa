"""One rollout from Python: three ways to ask for it, one result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from support.task_writer import write_task

import benchflow as bf
from benchflow import errors
from benchflow.contracts.rollout import RolloutResult


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path, "small")


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


@pytest.mark.parametrize("way", [by_config, by_agent_and_environment, by_rollout, by_runtime])
async def test_every_way_of_asking_gives_the_same_scored_result(way: Way, engine: Path, task: Path) -> None:
    result = await way(task, engine)
    assert isinstance(result, bf.RolloutResult)
    assert result.rewards == {"reward": 1.0}
    assert (result.status, result.error, result.task_name, result.agent) == ("passed", None, "small", "oracle")
    assert result.directory is not None
    assert Path(result.directory).parent == engine / "a-way"


@pytest.mark.docker
async def test_an_agents_name_and_a_task_are_enough(engine: Path, task: Path) -> None:
    result = await bf.run("oracle", task_path=str(task))
    assert result.reward == 1.0
    assert Path(str(result.directory)).parents[1] == engine
    assert [line["type"] for line in result.trajectory] == ["user_message", "oracle"]
    assert result.trajectory[1]["return_code"] == 0


async def test_a_result_says_all_that_is_known_of_the_rollout(engine: Path, task: Path) -> None:
    result = await by_config(task, engine)
    assert result.reward == 1.0 and result.reward_kind == "measured"
    assert result.job_name == "a-way"
    assert result.workflow_id.startswith("job/a-way-") and result.workflow_id.endswith("/r/small/oracle/0")
    assert result.rollout_name.startswith("small__") and result.directory == str(engine / "a-way" / result.rollout_name)
    assert (result.n_prompts, result.n_tool_calls, result.repeat, result.attempt) == (1, 0, 0, 1)
    assert result.started_at.tzinfo == UTC and result.started_at <= result.finished_at
    assert {"plan", "provision", "connect", "execute", "verify"} <= result.timing.keys()
    assert all(seconds >= 0 for seconds in result.timing.values())
    assert result.tree == {"nodes": 2, "leaves": 1}
    assert (result.n_input_tokens, result.n_output_tokens, result.cost_usd) == (None, None, None)
    assert next(line["type"] for line in result.trajectory) == "user_message"
    assert len(result.task_digest) == 64
    assert bf.RunResult is bf.RolloutResult


async def test_the_same_rollout_asked_for_again_is_found_not_repeated(engine: Path, task: Path) -> None:
    first, second = await by_config(task, engine), await by_config(task, engine)
    assert second == first


async def test_a_failed_rollout_is_a_result_not_an_exception(engine: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path, "odd", config="[solution]\ntimeout_sec = 5\n")
    (task / "solution" / "solve.sh").unlink()
    result = await by_config(task, engine)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None and result.error.type == "UnsupportedFeatureError"


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"subject": "oracle"}, "task_path"),
        ({"subject": bf.Agent("oracle")}, "environment"),
        ({"subject": bf.Agent("oracle"), "environment": bf.Environment(Path("x")), "task_path": "y"}, "task_path"),
        ({"subject": bf.RolloutConfig(task_path=Path("x")), "model": "m"}, "model"),
        ({"subject": "oracle", "task_path": "x", "runtime_config": bf.RuntimeConfig()}, "runtime_config"),
    ],
)
async def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        await bf.run(**arguments)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"scenes": [bf.Scene.single(agent="orakel")]}, errors.ConfigError, "did you mean 'oracle'"),
        ({"scenes": [bf.Scene.single(agent="nop", model="gpt-x")]}, errors.ConfigError, "uses no model"),
        ({"environment": "cloud"}, errors.ConfigError, "no sandbox provider 'cloud'"),
        ({"job_name": "../up"}, errors.ConfigError, "cannot name a job"),
        ({"task_path": "nowhere"}, errors.TaskNotFoundError, "nowhere"),
    ],
)
async def test_what_is_wrong_is_said_before_anything_starts(
    changes: dict[str, Any], error: type[errors.BenchFlowError], says: str, state: Path, task: Path
) -> None:
    config = bf.RolloutConfig(task_path=task, environment="noop").model_copy(update=changes)
    with pytest.raises(error, match=says):
        await bf.Rollout.create(config.model_copy(update={"task_path": Path(config.task_path)}))
    assert not state.exists()


def test_every_public_name_is_there() -> None:
    for name in bf.__all__:
        assert getattr(bf, name) is not None
    assert set(dir(bf)) == set(bf.__all__)


@pytest.mark.local
async def test_a_stored_rollout_is_scored_by_a_rubric(engine: Path, tmp_path: Path) -> None:
    test = "grep -q hello out.txt && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"
    task = write_task(
        tmp_path,
        "small",
        solve="echo hello world >/app/out.txt\n",
        test=f"cd /app; {test}",
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n",
    )
    config = bf.RolloutConfig(task_path=task, environment="local", jobs_dir=engine, job_name="kept", keep="workspace")
    result = await bf.run(config)
    assert result.rewards == {"reward": 1.0}, result.error
    rubric = bf.Rubric(
        reward_funcs=[
            bf.TestRewardFunc(),
            bf.StringMatchRewardFunc(expected="hello world"),
            bf.StringMatchRewardFunc(expected="hello world", path="out.txt"),
            bf.CodeExecRewardFunc(command="grep -q nothing out.txt"),
        ],
        weights=[0.4, 0.3, 0.2, 0.1],
        names=["tests", "answer", "file", "grep"],
    )
    again = await rubric.score(rollout_dir=str(result.directory))
    assert (again.items, again.errors) == ({"tests": 1.0, "answer": 0.0, "file": 1.0, "grep": 0.0}, {})
    assert again.reward == pytest.approx(0.6)
    assert {event.source: event.value for event in again.events} == again.items
