"""The worker dies in the middle of a Python agent's turn, which acts in the worker itself: each step is done once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.embedded import EmbeddedStack, chance_of_this_run
from support.scored import assert_nothing_is_left, finish, rows, submit_job
from support.task_writer import BASE_IMAGE, write_task
from support.worlds import everywhere, seldom_on_docker

from benchflow.contracts.job import AgentSpec
from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

STEPS = 20
AGENT = f'''
from benchflow import AgentTurn


async def act(turn: AgentTurn) -> None:
    """Leave so many marks, and say so."""
    for number in range({STEPS}):
        turn.memory["marks"] = number + 1
        marks = await turn.exec(f"echo {{number}} >>marks; sleep 0.2; wc -l <marks")
        await turn.say(marks.stdout.strip())
    await turn.write_file("answer", str(turn.memory["marks"]))
'''
TEST = f"""mkdir -p /logs/artifacts; cp /app/marks /logs/artifacts/
[ "$(cat /app/answer)" = {STEPS} ] && echo 1 >/logs/verifier/reward.txt
"""


async def start(stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Start a job of one rollout, whose agent is a function in a file of the current directory."""
    (tmp_path / "killed_agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    task = write_task(tmp_path / "tasks", "marks", test=TEST, dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    agents = [AgentSpec(name="killed_agent:act")]
    return await submit_job(stack, [task], tmp_path / "jobs", agents=agents, retry={"max_retries": 0})


def paths_of(job: Job) -> RolloutPaths | None:
    found = [*job.directory.root.glob("marks__*")]
    return RolloutPaths(found[0]) if found else None


async def told(job: Job, count: int) -> None:
    """Wait until so many lines are in the trajectory."""
    await until(lambda: (paths := paths_of(job)) is not None and len(read_journal(paths.trajectory)) >= count)


def assert_done_once(job: Job) -> None:
    (row,) = rows(job)
    assert (row["status"], row["reward"], row["attempt"], row["error"]) == ("passed", 1.0, 1, None), row
    paths = paths_of(job)
    assert paths is not None
    assert (paths.artifacts / "marks").read_text().split() == [str(number) for number in range(STEPS)]
    events = read_journal(paths.trajectory)
    assert [event["seq"] for event in events] == [*range(len(events))]
    step = ["tool_call", "tool_call_update"]
    assert [event["type"] for event in events] == ["user_message", *[*step, "agent_message"] * STEPS, *step]
    texts = [event["text"] for event in events if event["type"] == "agent_message"]
    assert texts == [str(number + 1) for number in range(STEPS)]


@seldom_on_docker
async def test_a_worker_dies_in_mid_turn(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await start(stack, tmp_path, monkeypatch)
    await told(job, 8)
    await stack.strike("worker")
    await finish(job)
    assert_done_once(job)
    assert [*stack.paths.sessions.iterdir()] == []
    await assert_nothing_is_left(stack)


@pytest.mark.long
@everywhere
async def test_workers_die_again_and_again(
    stack: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    luck = chance_of_this_run()
    job = await start(stack, tmp_path, monkeypatch)
    for number in sorted(luck.sample(range(1, 3 * STEPS), 4)):
        await told(job, number)
        # Not a wait for anything: how far a step has come when the worker dies is what is random.
        await asyncio.sleep(luck.uniform(0, 0.3))
        await stack.strike("worker")
    await finish(job)
    assert_done_once(job)
    await assert_nothing_is_left(stack)
