"""An agent in the middle of its turn, and everything around it dies: what was said, was said once.

The agent acts for some time, says so many things, and asks for permission. The prompt and each answer must have reached
it once, and each of its updates must be in the trajectory once, in order.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_task import AGENT, Told, long_turn, step_of, texts_of, write_agent_task
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.scored import assert_nothing_is_left, finish, rows, submit_job
from support.worlds import Seen, everywhere, on_docker

from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("demo_agent", "no_images_left")

DAEMON = "while sleep 0.1; do echo beat; done"
"""What an agent leaves running beside itself."""


async def start(stack: EmbeddedStack, tasks: list[Path], jobs: Path, **options: Any) -> Job:
    return await submit_job(stack, tasks, jobs, agents=[AGENT], retry={"max_retries": 0}, **options)


def told_of(job: Job, task: Path) -> Told:
    (directory,) = job.directory.root.glob(f"{task.name}__*")
    return Told(RolloutPaths(directory))


def sessions(stack: EmbeddedStack) -> list[Path]:
    return sorted(stack.paths.sessions.glob("*/notes/0.0"))


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


def assert_passed(job: Job) -> None:
    for row in rows(job):
        assert (row["status"], row["reward"], row["attempt"], row["error"]) == ("passed", 1.0, 1, None), row


def assert_no_sessions_left(stack: EmbeddedStack) -> None:
    assert [*stack.paths.sessions.iterdir()] == []


# --- the worker ------------------------------------------------------------------------------------------


async def has_session(stack: EmbeddedStack, file: str) -> None:
    """Wait until a file of an agent's session is there."""
    await until(lambda: any((session / file).exists() for session in sessions(stack)))


@pytest.mark.long
@everywhere
async def test_workers_die_under_an_agent_and_it_is_told_everything_once(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    task = write_agent_task(tmp_path / "tasks", "held", long_turn(1.5, 60, held=True), ["initialize"])
    job = await start(stack, [task], tmp_path / "jobs")
    await has_session(stack, "request-initialize.json")
    await stack.strike("worker")
    stack.let_go(step_of("initialize"))
    for part, how in enumerate((signal.SIGKILL, signal.SIGTERM)):
        await heard(job, task, 20 * (part + 1))
        stack.kill("worker", with_signal=how)
        # It asks, is not answered, and the second time goes on to the end of its turn, before the next worker is there.
        stack.let_go(step_of(part))
    await finish(job)
    assert_passed(job)
    assert_said_once(told_of(job, task), 60)
    assert_no_sessions_left(stack)
    await assert_nothing_is_left(stack)


FIVE = [signal.SIGKILL] * 4 + [signal.SIGTERM]
TWENTY = [signal.SIGKILL] * 15 + [signal.SIGTERM] * 5


@on_docker
@pytest.mark.parametrize(
    ("seconds", "blows"),
    # A worker that dies young is started again later and later, so that more deaths need much more time.
    [pytest.param(20.0, FIVE, marks=pytest.mark.long), pytest.param(150.0, TWENTY, marks=pytest.mark.soak)],
    ids=["five-times", "twenty-times"],
)
async def test_workers_die_again_and_again(
    stack: EmbeddedStack, tmp_path: Path, seconds: float, blows: list[signal.Signals]
) -> None:
    luck = chance_of_this_run()
    task = write_agent_task(tmp_path / "tasks", "long", long_turn(seconds, 300))
    job = await start(stack, [task], tmp_path / "jobs")
    await heard(job, task, 1)
    for how in luck.sample(blows, len(blows)):
        # Not a wait for anything: how far a worker has come when it dies is what is random.
        await asyncio.sleep(luck.uniform(0, 3))
        await stack.strike("worker", with_signal=how)
    await job.wait()
    assert_passed(job)
    assert_said_once(told_of(job, task), 300)
    assert_no_sessions_left(stack)
    await assert_nothing_is_left(stack)


@pytest.mark.long
@on_docker
async def test_workers_die_before_the_turn_and_as_it_begins(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path
) -> None:
    held = ("initialize", "session/new")
    task = write_agent_task(tmp_path / "tasks", "slow", long_turn(3, 30), held)
    job = await start(stack, [task], tmp_path / "jobs")
    await has_session(stack, "in")
    await stack.strike("worker")
    for file, step in (("request-initialize.json", "initialize"), ("request-session-new.json", "session/new")):
        await has_session(stack, file)
        await stack.strike("worker")
        stack.let_go(step_of(step))
    await has_session(stack, "request-prompt-0.json")
    await stack.strike("worker")
    await finish(job)
    assert_passed(job)
    assert_said_once(told_of(job, task), 30)
    assert_no_sessions_left(stack)
    await assert_nothing_is_left(stack)


# --- the server ------------------------------------------------------------------------------------------


@pytest.mark.long
@on_docker
async def test_the_server_dies_twice_and_then_with_the_worker(stack: EmbeddedStack, tmp_path: Path) -> None:
    task = write_agent_task(tmp_path / "tasks", "served", long_turn(12, 120))
    job = await start(stack, [task], tmp_path / "jobs")
    victims: list[tuple[Role, ...]] = [("server",), ("server",), ("server", "worker")]
    for number, roles in enumerate(victims):
        await heard(job, task, 10 + 35 * number)
        await stack.strike(*roles)
    await job.wait()
    assert_passed(job)
    assert_said_once(told_of(job, task), 120)
    assert_no_sessions_left(stack)
    await assert_nothing_is_left(stack)


# --- the end of a turn that nobody wants, or that cannot go on -----------------------------------------------


@pytest.mark.long
@everywhere
async def test_turns_that_are_over_before_their_end(often_swept: None, stack: EmbeddedStack, tmp_path: Path) -> None:
    """One rollout is cancelled, one terminated, and one loses its sandbox, all in the middle of a turn of minutes."""
    names = ("cancelled", "terminated", "lost")
    turn = [{"daemon": DAEMON}, *long_turn(3600, 36000)]
    tasks = {name: write_agent_task(tmp_path / "tasks", name, turn) for name in names}
    job = await start(stack, [*tasks.values()], tmp_path / "jobs")
    for task in tasks.values():
        await heard(job, task, 3)
    here = {name: _find(stack, job, name) for name in names}
    await job.cancel_rollout(here["cancelled"].workflow)
    await job.engine.client.get_workflow_handle(here["terminated"].workflow).terminate("by an operator")
    stack.world.kill(here["lost"])
    await until(_row_of(job, "lost"))
    await until(_row_of(job, "cancelled"))

    # A terminated workflow says nothing any more; that its agent is to stop, the next heartbeat tells.
    journal = stack.paths.sessions / here["terminated"].name / "shared" / "0.0" / "in"
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
        assert len(texts) >= 3
        assert texts == texts_of(36000)[: len(texts)]

    async def no_sessions_are_left() -> bool:
        return [*stack.paths.sessions.iterdir()] == []

    # The reaper removes those of a sandbox when that is gone.
    await until(no_sessions_are_left)
    await assert_nothing_is_left(stack)


def _find(stack: EmbeddedStack, job: Job, task: str) -> Seen:
    (found,) = (seen for seen in stack.world.sandboxes() if f"/r/{task}/" in seen.workflow)
    return found


def _row_of(job: Job, task: str) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return job.directory.results.exists() and any(row["task_name"] == task for row in rows(job))

    return there


async def _has(file: Path, text: str) -> bool:
    return text in file.read_text()
