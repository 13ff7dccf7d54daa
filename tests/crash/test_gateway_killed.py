"""A model call is under way, or an agent between two of them, and what it passes through dies, or its worker does.

The model answers when it is told to. What it answered is not asked for again, and what it could not answer is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.counted_task import BASE_IMAGE
from support.embedded import EmbeddedStack
from support.outages import filled, last, tmpfs
from support.scored import assert_nothing_is_left, finish, submit_job
from support.signals import stopped
from support.worlds import on_local

from benchflow import stack as stacks
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.gateway.blockage import FROZEN_SEC
from benchflow.gateway.gateway_client import GatewayClient
from benchflow.gateway.gateway_process import ensure_gateway, is_running
from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.usefixtures("handed_over", "policy_agent")

PATIENCE = 300.0
"""Seconds until an agent has called its model: from the submission of its job on, or after a crash."""

TEST = "#!/bin/sh\n[ -e /app/answer ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    made = tmp_path / "tasks" / "asked"
    for directory in ("environment", "tests"):
        (made / directory).mkdir(parents=True)
    (made / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    (made / "task.toml").write_text('[environment]\nnetwork_mode = "no-network"\n')
    (made / "instruction.md").write_text("Make the answer.\n")
    (made / "tests" / "test.sh").write_text(TEST)
    (made / "tests" / "test.sh").chmod(0o755)
    return made


def runs(command: str, **more: Any) -> dict[str, Any]:
    return {"text": "So.", "tools": [{"tool": "shell", "arguments": {"command": command}}], **more}


def script(*replies: Any) -> dict[str, Any]:
    return {"follow": "conversation", "replies": list(replies)}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """Answers the first call when it is let go, and then ends the turn."""
    with ScriptedModel(script(runs("echo 42 > answer", hold="first"), "Done.")) as running:
        yield running


async def start(stack: EmbeddedStack, task: Path, jobs: Path, model: ScriptedModel, **options: Any) -> Job:
    agent = AgentSpec(name="policy", model="openai/scripted", base_url=model.openai_base_url)
    return await submit_job(stack, [task], jobs, agents=[agent], retry={"max_retries": 0}, **options)


def result_of(job: Job) -> RolloutResult:
    (result,) = job.results()
    assert (result.error, result.status, result.rewards) == (None, "passed", {"reward": 1.0})
    assert result.sandbox["provisions"] == 1
    return result


def record_of(result: RolloutResult) -> list[tuple[str | None, dict[str, Any]]]:
    """Of each call: the kind of its error, and its request."""
    lines = read_journal(RolloutPaths(Path(str(result.directory))).model_calls)
    answers = {line["id"]: line for line in lines if line["type"] == "response"}
    requests = [line for line in lines if line["type"] == "request" and line["api"] != "other"]
    return [((answers[line["id"]]["error"] or {}).get("kind"), line) for line in requests]


def restarts(stack: EmbeddedStack, name: str) -> int:
    count: int = json.loads(stack.paths.stack_record.read_text())["restarts"].get(name, 0)
    return count


@on_local
async def test_a_call_outlives_the_worker_and_one_that_dies_with_the_gateway_is_made_again(
    stack: EmbeddedStack, task: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    job = await start(stack, task, tmp_path / "jobs", model)
    await model.arrived(1, timeout=PATIENCE)
    gateway = await ensure_gateway(stack.paths)
    await stack.strike("worker")
    assert len(model.in_flight) == 1
    assert (await ensure_gateway(stack.paths)).pid == gateway.pid

    os.kill(gateway.pid, signal.SIGKILL)
    # The next one is started by nobody but the supervisor.
    await until(lambda: restarts(stack, "gateway") > 0)
    await model.arrived(2, timeout=PATIENCE)
    model.release("first")
    await finish(job)
    result = result_of(job)
    lost, again, last = record_of(result)
    assert (lost[0], again[0], last[0]) == ("gateway_restarted", None, None)
    assert again[1]["request"] == lost[1]["request"]
    assert [line["seq"] for _, line in (lost, again, last)] == [0, 1, 2]
    assert {(line["node"], line["role"], line["turn"]) for _, line in (lost, again, last)} == {("n1", "agent", 0)}
    turn = result.steps[0].turn
    # Two were answered; the one that was not was asked, too.
    assert turn.usage is not None and (turn.usage.calls, turn.turn_end) == (3, "observed")
    assert [call.client_left for call in model.calls] == [True, False, False]
    assert restarts(stack, "gateway") == 1
    await assert_nothing_is_left(stack)


@pytest.mark.long
@on_local
async def test_a_call_that_waits_for_the_disk_is_no_silence_of_its_agent(
    stack: EmbeddedStack, task: Path, tmp_path: Path
) -> None:
    idle_sec = 3.0
    # More than the record's last block has space for.
    answer = runs("echo 42 > answer", hold="first") | {"text": "So. " * 4096}
    with tmpfs(tmp_path / "jobs", 64 << 20), ScriptedModel(script(answer, "Done.")) as model:
        job = await start(stack, task, tmp_path / "jobs", model, agent_idle_timeout_sec=idle_sec)
        await model.arrived(1, timeout=PATIENCE)
        client = GatewayClient(stack.paths)

        async def has_waited_for_longer() -> bool:
            (status,) = await client.statuses()
            return sum(ended - began for began, ended in status.blocked) > idle_sec + 1

        with filled(tmp_path / "jobs"):
            model.release("first")
            await until(has_waited_for_longer)
        await finish(job)
        result_of(job)
        assert len(model.calls) == 2


@pytest.mark.long
@on_local
async def test_a_frozen_gateway_costs_time_and_neither_limit_of_a_turn(
    stack: EmbeddedStack, task: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    job = await start(stack, task, tmp_path / "jobs", model, agent_idle_timeout_sec=3, agent_timeout_sec=10)
    await model.arrived(1, timeout=PATIENCE)
    with stopped([(await ensure_gateway(stack.paths)).pid]):
        model.release("first")
        await last(FROZEN_SEC + 9)
    await finish(job)
    result_of(job)
    assert len(model.calls) == 2


@pytest.mark.long
@on_local
async def test_the_gateway_goes_and_comes_with_the_stack(stack: EmbeddedStack, task: Path, tmp_path: Path) -> None:
    # The agent is at work until the stack is there again, and asks the model again when it has done it.
    work = "touch started; until [ -e go ]; do sleep 0.1; done; echo 42 > answer"
    with ScriptedModel(script(runs(work), "Done.")) as model:
        job = await start(stack, task, tmp_path / "jobs", model)
        await model.arrived(1, timeout=PATIENCE)
        await stack.in_step("/app/started")
        before = await ensure_gateway(stack.paths)
        await asyncio.to_thread(stacks.stop_stack, stack.paths)
        assert not is_running(stack.paths)
        await stack.start()
        stack.world.make_file("/app/go")
        job = await start(stack, task, tmp_path / "jobs", model)
        assert job.attached
        await finish(job)
        assert len(model.calls) == 2
    assert (await ensure_gateway(stack.paths)).pid != before.pid
    result = result_of(job)
    assert [(kind, line["turn"]) for kind, line in record_of(result)] == [(None, 0)] * 2
    usage = result.steps[0].turn.usage
    assert usage is not None and usage.calls == 2
    await assert_nothing_is_left(stack)


@pytest.mark.long
@on_local
async def test_a_stack_stops_although_a_model_does_not_answer(
    stack: EmbeddedStack, task: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    """The call is broken off, and made again when the stack is back."""
    job = await start(stack, task, tmp_path / "jobs", model)
    await model.arrived(1, timeout=PATIENCE)
    await asyncio.to_thread(stacks.stop_stack, stack.paths)
    assert not is_running(stack.paths)
    await stack.start()
    await model.arrived(2, timeout=PATIENCE)
    model.release("first")
    job = await start(stack, task, tmp_path / "jobs", model)
    await finish(job)
    assert [kind for kind, _ in record_of(result_of(job))] == ["gateway_stopped", None, None]
    await assert_nothing_is_left(stack)
