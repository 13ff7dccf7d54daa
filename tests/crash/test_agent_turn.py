"""An agent in the middle of its turn, and everything around it dies: what was said, was said once.

The agent acts for some seconds, says so many things, and asks for permission. The prompt and each answer must have
reached it once, each of its updates must be in the trajectory once, in order, and nothing may have cost it time but the
moments in which nobody listened.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_task import AGENT, Told, long_turn, texts_of, write_agent_task
from support.embedded import EmbeddedStack, Role
from support.scored import assert_nothing_is_left, rows, submit_job
from support.worlds import Seen, seldom_on_docker, seldom_on_local

from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("demo_agent", "no_images_left")]

DAEMON = "while sleep 0.1; do echo beat; done"
"""What an agent leaves running beside itself."""


class Blows:
    """Kills, and when they were."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self._stack = stack
        self.struck: list[tuple[str, float]] = []

    async def strike(self, *roles: Role, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal the processes of these roles, then wait for the next ones to be started."""

        async def hit() -> list[int]:
            return self._stack.kill(*roles, with_signal=how)

        # Of those before, the last may be gone, and the next not there yet.
        victims = await until(hit)
        self.struck.append((f"{how.name} of {' and '.join(roles)}", time.time()))

        async def others_are_there() -> bool:
            return all({*self._stack.processes(role)} - {*victims} for role in roles)

        await until(others_are_there)

    def gaps(self, told: Told) -> list[float]:
        """How long nobody listened: the longest silence from each kill until the next one. Prints them.

        One that lasts over several kills is one.
        """
        silences = set()
        ends = [moment for _, moment in self.struck[1:]] + [float("inf")]
        for (what, moment), end in zip(self.struck, ends, strict=True):
            silence = told.longest_silence(moment, end)
            if silence is None:
                print(f"[gap] {what}: all had been heard")
                continue
            print(f"[gap] {what}: {silence[1] - silence[0]:.2f} s")
            silences.add(silence)
        return [last - first for first, last in silences]


async def start(stack: EmbeddedStack, tasks: list[Path], jobs: Path, **options: Any) -> Job:
    return await submit_job(stack, tasks, jobs, agents=[AGENT], retry={"max_retries": 0}, **options)


def told_of(job: Job, task: Path) -> Told:
    (directory,) = job.directory.root.glob(f"{task.name}__*")
    return Told(RolloutPaths(directory))


def sessions(stack: EmbeddedStack) -> list[Path]:
    return sorted(stack.paths.sessions.glob("*/0.0"))


async def heard(job: Job, task: Path, count: int) -> None:
    """Until so many of an agent's texts are in its trajectory."""

    async def enough() -> bool:
        found = [*job.directory.root.glob(f"{task.name}__*")]
        return bool(found) and len(Told(RolloutPaths(found[0])).texts) >= count

    await until(enough)


def assert_said_once(told: Told, updates: int, asks: int = 2) -> None:
    """The agent was told everything once, and all that it said is there once, in order."""
    assert told.methods == ["initialize", "session/new", "session/prompt"]
    assert told.answers == list(range(asks))
    assert told.texts == texts_of(updates, asks)
    assert told.kinds["user_message"] == 1
    assert told.kinds["permission_request"] == told.kinds["permission_answer"] == asks
    assert [event["seq"] for event in told.events] == list(range(len(told.events)))
    sent = [json.loads(line) for line in (told.paths.sessions / "0.0" / "in.jsonl").read_text().splitlines()]
    assert len(sent) == len(told.received)


def assert_took(job: Job, seconds: float, gaps: list[float]) -> None:
    """The turns were as long as they are by themselves, but for when nobody answered."""
    for row in rows(job):
        took = row["timing"]["execute"]
        print(f"[turn] {took:.1f} s, {seconds:g} s of them its own, {sum(gaps):.1f} s of gaps")
        # A busy machine makes an agent late, too, and whoever starts it, and whoever hears its end.
        assert took < 1.2 * seconds + sum(gaps) + 30


def assert_passed(job: Job) -> None:
    for row in rows(job):
        assert (row["status"], row["reward"], row["attempt"], row["error"]) == ("passed", 1.0, 1, None), row


def assert_no_sessions_left(stack: EmbeddedStack) -> None:
    assert [*stack.paths.sessions.iterdir()] == []


def chance() -> random.Random:
    """What a failed test printed makes the same choices again."""
    seed = int(os.environ.get("BENCHFLOW_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"\nBENCHFLOW_TEST_SEED={seed}")
    return random.Random(seed)


# --- the worker ------------------------------------------------------------------------------------------

FIVE = [signal.SIGKILL] * 4 + [signal.SIGTERM]
TWENTY = [signal.SIGKILL] * 15 + [signal.SIGTERM] * 5


@seldom_on_docker
@pytest.mark.parametrize(
    ("seconds", "blows"),
    # A worker that dies young is started again later and later, so that more deaths need much more time.
    [(20.0, FIVE), pytest.param(150.0, TWENTY, marks=pytest.mark.soak)],
    ids=["five-times", "twenty-times"],
)
async def test_workers_die_again_and_again(
    stack: EmbeddedStack, tmp_path: Path, seconds: float, blows: list[signal.Signals]
) -> None:
    luck = chance()
    task = write_agent_task(tmp_path / "tasks", "long", long_turn(seconds, 300))
    job = await start(stack, [task], tmp_path / "jobs")
    struck = Blows(stack)
    await heard(job, task, 1)
    for how in luck.sample(blows, len(blows)):
        # Not a wait for anything: how far a worker has come when it dies is what is random.
        await asyncio.sleep(luck.uniform(0, 3))
        await struck.strike("worker", how=how)
    await job.wait()
    assert_passed(job)
    told = told_of(job, task)
    assert_said_once(told, 300)
    assert_took(job, seconds, struck.gaps(told))
    assert_no_sessions_left(stack)
    assert_nothing_is_left(stack)


@seldom_on_docker
async def test_workers_die_before_the_turn_and_as_it_begins(stack: EmbeddedStack, tmp_path: Path) -> None:
    slow = {"initialize": 1.0, "session/new": 1.0}
    task = write_agent_task(tmp_path / "tasks", "slow", long_turn(6, 30), slow)
    job = await start(stack, [task], tmp_path / "jobs")
    struck = Blows(stack)
    for file in ("in", "request-initialize.json", "request-session-new.json", "request-prompt-0.json"):

        async def is_there(name: str = file) -> bool:
            return any((session / name).exists() for session in sessions(stack))

        await until(is_there)
        await struck.strike("worker")
    await job.wait()
    assert_passed(job)
    print(f"[before the turn] {rows(job)[0]['timing']}")
    assert_said_once(told_of(job, task), 30)
    assert_no_sessions_left(stack)
    assert_nothing_is_left(stack)


# --- the server ------------------------------------------------------------------------------------------


@seldom_on_docker
async def test_the_server_dies_twice_and_then_with_the_worker(stack: EmbeddedStack, tmp_path: Path) -> None:
    task = write_agent_task(tmp_path / "tasks", "served", long_turn(12, 120))
    job = await start(stack, [task], tmp_path / "jobs")
    struck = Blows(stack)
    victims: list[tuple[Role, ...]] = [("server",), ("server",), ("server", "worker")]
    for number, roles in enumerate(victims):
        await heard(job, task, 10 + 35 * number)
        await struck.strike(*roles)
    await job.wait()
    assert_passed(job)
    told = told_of(job, task)
    assert_said_once(told, 120)
    assert_took(job, 12, struck.gaps(told))
    assert_no_sessions_left(stack)
    assert_nothing_is_left(stack)


# --- the end of a turn that nobody wants, or that cannot go on -----------------------------------------------


@seldom_on_local
async def test_turns_that_are_over_before_their_end(
    often_swept_seldom_reaped: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    """One rollout is cancelled, one terminated, and one loses its sandbox, all in the middle of a turn of minutes."""
    names = ("cancelled", "terminated", "lost")
    turn = [{"daemon": DAEMON}, *long_turn(300, 3000)]
    tasks = {name: write_agent_task(tmp_path / "tasks", name, turn) for name in names}
    job = await start(stack, [*tasks.values()], tmp_path / "jobs")
    for task in tasks.values():
        await heard(job, task, 3)
    here = {name: _find(stack, job, name) for name in names}
    began = time.monotonic()
    await job.cancel_rollout(here["cancelled"].workflow)
    await job.engine.client.get_workflow_handle(here["terminated"].workflow).terminate("by an operator")
    stack.world.kill(here["lost"])
    await until(_row_of(job, "lost"))
    print(f"[lost] {time.monotonic() - began:.1f} s until the row of a lost sandbox")
    await until(_row_of(job, "cancelled"))
    print(f"[cancelled] {time.monotonic() - began:.1f} s until the row of a cancelled rollout")
    # By themselves, the turns take much longer.
    assert time.monotonic() - began < 120

    # A terminated workflow says nothing any more; that its agent is to stop, the next heartbeat tells.
    journal = stack.paths.sessions / here["terminated"].name / "0.0" / "in"
    await until(lambda: _has(journal, "session/cancel"))

    async def agent_is_gone() -> bool:
        left = " ".join(stack.world.commands(here["terminated"]))
        return "agent.py" not in left and DAEMON not in left

    await until(agent_is_gone)
    # A worker reaps when it starts, and from time to time.
    stack.kill("worker")

    async def reaped() -> bool:
        return here["terminated"].name not in [seen.name for seen in stack.world.sandboxes()]

    await until(reaped)
    await job.wait()
    found = {row["task_name"]: row for row in rows(job)}
    assert {name: (row["status"], row["error_category"], row["reward"]) for name, row in found.items()} == {
        "cancelled": ("cancelled", "cancelled", None),
        "terminated": ("errored", "terminated", None),
        "lost": ("errored", "sandbox_lost", None),
    }
    assert told_of(job, tasks["cancelled"]).methods[-1] == "session/cancel"
    for task in tasks.values():
        texts = told_of(job, task).texts
        assert 3 <= len(texts) < 1000
        assert texts == texts_of(3000)[: len(texts)]

    async def no_sessions_are_left() -> bool:
        return [*stack.paths.sessions.iterdir()] == []

    # The reaper removes those of a sandbox when that is gone.
    await until(no_sessions_are_left)
    assert_nothing_is_left(stack)


def _find(stack: EmbeddedStack, job: Job, task: str) -> Seen:
    (found,) = (seen for seen in stack.world.sandboxes() if f"/r/{task}/" in seen.workflow)
    return found


def _row_of(job: Job, task: str) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return job.directory.results.exists() and any(row["task_name"] == task for row in rows(job))

    return there


async def _has(file: Path, text: str) -> bool:
    return text in file.read_text()
