"""From Python: as little as one can say runs a rollout, and a rubric scores one that is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import write_task

import benchflow as bf
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.owners import OF_A_PROCESS


@pytest.mark.docker
async def test_an_agents_name_and_a_task_are_enough(engine: Path, tmp_path: Path) -> None:
    result = await bf.run("oracle", task_path=str(write_task(tmp_path, "small")))
    assert result.reward == 1.0
    assert Path(str(result.directory)).parents[1] == engine
    assert [line["type"] for line in result.trajectory] == ["user_message", "oracle"]
    assert result.trajectory[1]["return_code"] == 0


def system_tasks(root: Path) -> SystemTasks:
    greeting = write_task(
        root,
        "greeting",
        solve="echo hello world >/app/out.txt\n",
        test="cd /app; grep -q hello out.txt && echo 1 >/logs/verifier/reward.txt\n",
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n",
    )
    return {"rooms": [greeting]}


@pytest.mark.local
async def test_a_stored_rollout_is_scored_by_a_rubric(rooms_results: Results, engine: Path) -> None:
    result = rooms_results["greeting"]
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
    try:
        again = await rubric.score(rollout_dir=str(result.directory))
    finally:
        await close_providers(OF_A_PROCESS)
    assert (again.items, again.errors) == ({"tests": 1.0, "answer": 0.0, "file": 1.0, "grep": 0.0}, {})
    assert again.reward == pytest.approx(0.6)
    assert {event.source: event.value for event in again.events} == again.items
