"""The number of a job's sandboxes that run at a time, counted from what the Docker daemon says."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.container_events import Running, running_containers
from support.running import run_job
from support.task_writer import BASE_IMAGE, write_task

from benchflow.contracts.rollout_records import RolloutResult

pytestmark = pytest.mark.docker


DOCKERFILE = f"FROM {BASE_IMAGE}\nWORKDIR /app\n"
SOLVE = "echo done > /app/answer\n"
TEST = "[ -e /app/answer ] && echo 1 > /logs/verifier/reward.txt\n"
"""The workspace is what travels into a clean room."""


def run(root: Path, module_jobs: Path, **options: Any) -> tuple[RolloutResult, Running]:
    """Run a job of one rollout, one sandbox at a time. Returns its result, and the containers that it had."""
    name = f"running-{uuid.uuid4().hex[:8]}"
    options = {"job_name": name, "sandbox": "docker", "concurrency": 1} | options
    with running_containers(name) as running:
        task = write_task(root, solve=SOLVE, test=TEST, dockerfile=DOCKERFILE)
        job = asyncio.run(run_job([task], module_jobs, **options))
    [result] = job.results()
    assert result.status == "passed", result.error or result.verifier_error
    return result, running


def test_the_children_of_a_group_run_one_after_another_while_their_parent_is_frozen(
    module_jobs: Path, tmp_path: Path
) -> None:
    result, running = run(tmp_path, module_jobs, mode={"kind": "grpo", "n": 6})
    assert result.reward_kind == "value"
    assert (len(running.names), running.most) == (7, 1)
    assert running.paused == {result.sandbox["name"]}


def test_a_clean_room_runs_while_the_agents_sandbox_is_frozen(module_jobs: Path, tmp_path: Path) -> None:
    result, running = run(tmp_path, module_jobs, verify_in="separate")
    assert result.steps[0].verify is not None
    assert result.steps[0].verify.metadata["verified_in"] == "separate"
    assert (len(running.names), running.most) == (2, 1)
    assert running.paused == {result.sandbox["name"]}
