"""Configurations: scenes lower to one agent or are refused by name; waits grow and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.config import JobConfig, Role, RolloutConfig, Scene, Turn
from benchflow.contracts.job import AgentSpec, JobSpec, TaskRef
from benchflow.contracts.job_retries import RetryConfig
from benchflow.errors import ConfigError, UnsupportedFeatureError

TWO = [Role("a", "oracle"), Role("b", "nop")]


def test_a_scene_of_one_turn_lowers_to_its_agent() -> None:
    job = RolloutConfig(task_path=Path("t"), scenes=[Scene.single(agent="nop", model="m")]).lower()
    assert (job.agents, job.concurrency, job.repeats) == ([AgentSpec(name="nop", model="m")], 1, 1)


def test_every_option_of_a_rollout_reaches_its_job() -> None:
    options: dict[str, Any] = {
        "jobs_dir": Path("elsewhere"),
        "job_name": "named",
        "context_root": Path("root"),
        "sandbox_setup_timeout": 7.0,
        "agent_timeout_sec": 8.0,
        "deadline_sec": 9.0,
        "retry": RetryConfig(max_retries=5),
    }
    job = RolloutConfig(task_path=Path("t"), environment="noop", **options).lower()
    assert job.sandbox == "noop"
    assert {name: getattr(job, name) for name in options} == options


@pytest.mark.parametrize(
    "scenes",
    [
        [Scene(roles=TWO)],
        [Scene(roles=TWO, turns=[Turn("a"), Turn("b")])],
        [Scene(roles=TWO, turns=[Turn("a"), Turn("a")])],
        [Scene.single(agent="oracle"), Scene.single(agent="nop")],
        [Scene(roles=TWO, turns=[Turn("a", "my own words")])],
    ],
)
def test_more_than_one_turn_is_refused_by_name(scenes: list[Scene]) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        RolloutConfig(task_path=Path("t"), scenes=scenes).lower()
    assert caught.value.key == "scenes"
    assert "Scene.single" in str(caught.value.remedy)


def test_a_turn_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="undeclared role 'c'") as caught:
        RolloutConfig(task_path=Path("t"), scenes=[Scene(roles=TWO, turns=[Turn("c")])]).lower()
    assert caught.value.key == "scenes.scene-0.turns"
    with pytest.raises(ConfigError, match="needs a scene"):
        RolloutConfig(task_path=Path("t"), scenes=[]).lower()


@pytest.mark.parametrize("key", ["branch", "limits", "sampling", "user", "task"])
def test_a_key_that_nothing_carries_out_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        RolloutConfig(task_path=Path("t"), **{key: 1})


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": 501}, {"repeats": 0}, {"deadline_sec": 0}, {"paths": []}, {"agents": []}],
)
def test_a_job_that_could_not_run_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        JobConfig(**({"paths": [Path("t")]} | options))


def test_an_agent_is_a_name_or_a_name_and_a_model() -> None:
    job = JobConfig.model_validate({"paths": ["t"], "agents": ["oracle", "claude:opus:4", {"name": "x"}]})
    assert [(a.name, a.model, a.label) for a in job.agents] == [
        ("oracle", None, "oracle"),
        ("claude", "opus:4", "claude:opus:4"),
        ("x", None, "x"),
    ]


def test_waits_grow_by_their_multiplier_up_to_the_longest() -> None:
    retry = RetryConfig(min_wait_sec=1, wait_multiplier=2, max_wait_sec=10)
    assert [retry.wait(attempt) for attempt in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]
    assert RetryConfig(min_wait_sec=5, wait_multiplier=1).wait(9) == 5
    assert RetryConfig(min_wait_sec=0).wait(3) == 0


def test_rollouts_are_numbered_repeats_first() -> None:
    ref = ArtifactRef(uri="file:///x", sha256="0" * 64, size=0)
    spec = JobSpec(
        name="j",
        tasks=[TaskRef(name=name, digest="d", pack=ref) for name in ("t0", "t1")],
        agents=[AgentSpec(name=name) for name in ("a0", "a1", "a2")],
        repeats=2,
    )
    coordinates = [spec.coordinates(index) for index in range(spec.total)]
    assert coordinates[:7] == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0), (0, 0, 1)]
    assert len(set(coordinates)) == spec.total == 12


def test_whoever_submits_says_whether_reward_files_are_read_leniently(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not JobConfig(paths=[Path("task")]).reward_lenient
    monkeypatch.setenv("BENCHFLOW_REWARD_LENIENT", "1")
    assert JobConfig(paths=[Path("task")]).reward_lenient
    # As a job that is resumed has it in its file.
    assert not JobConfig(paths=[Path("task")], reward_lenient=False).reward_lenient
