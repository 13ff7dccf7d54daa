"""Rollouts, and a job, that are ended during an outage: they end, leave nothing, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.embedded import EmbeddedStack
from support.lasting_task import LAST_ROUNDS, PART, write_lasting_task
from support.outages import HEARTBEAT_TIMEOUT_SEC, Kind, last, outage
from support.scored import assert_nothing_is_left, finish, rows, submit_job
from support.worlds import seldom_on_docker

from benchflow.contracts.job import AgentSpec
from benchflow.jobs import Job
from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("outages_noticed_soon")

LENGTHS_SEC: dict[Kind, float] = {
    # The server, which lives, has taken the activities for lost.
    "worker-frozen": 3 * HEARTBEAT_TIMEOUT_SEC,
    # The SDK has cancelled them by itself.
    "server-killed": HEARTBEAT_TIMEOUT_SEC + 7,
}

ENDED = ("cancelled", "terminated")


@seldom_on_docker
@pytest.mark.parametrize("kind", ["worker-frozen", pytest.param("server-killed", marks=pytest.mark.long)])
async def test_what_is_ended_during_an_outage_ends_and_leaves_nothing(
    stack: EmbeddedStack, tmp_path: Path, lasting_agent: AgentSpec, kind: Kind
) -> None:
    tasks = [write_lasting_task(tmp_path / "tasks", name, "turn", 10_000) for name in ENDED]
    tasks += [write_lasting_task(tmp_path / "tasks", name, "turn", 100) for name in ("goes-on", "orphaned")]
    once = {"agents": [lasting_agent], "retry": {"max_retries": 0}}
    job = await submit_job(stack, tasks[:3], tmp_path / "jobs", **once)
    other = await submit_job(stack, tasks[3:], tmp_path / "jobs", "abandoned", **once)
    acting = {seen.workflow.split("/r/")[1].split("/")[0]: seen for seen in await stack.in_step(PART, 4)}
    stack.let_go(PART)

    async def end() -> None:
        client = job.engine.client
        await job.cancel_rollout(acting["cancelled"].workflow)
        for workflow in (acting["terminated"].workflow, other.id):
            await client.get_workflow_handle(workflow).terminate("by an operator")

    async with outage(stack, kind):
        await last(LENGTHS_SEC[kind])
        if kind == "worker-frozen":
            await end()
    if kind != "worker-frozen":
        # Nobody takes it before the server is back; it may come before the worker has noticed that it is.
        await end()

    def are_gone() -> bool:
        return not {acting[name].name for name in ENDED} & {seen.name for seen in stack.world.sandboxes()}

    await until(are_gone, every=0.1)
    assert {acting[name].name for name in ("goes-on", "orphaned")} == {seen.name for seen in stack.world.sandboxes()}
    stack.let_go(LAST_ROUNDS)
    await finish(job)
    assert ends_of(job) == {
        "cancelled": ("cancelled", "cancelled", None, 1),
        "terminated": ("errored", "terminated", None, 1),
        "goes-on": ("passed", None, 1.0, 1),
    }
    # What a terminated job has started comes to its own end.
    await until(lambda: stack.world.sandboxes() == [], every=0.1)
    await assert_nothing_is_left(stack)


def ends_of(job: Job) -> dict[str, tuple[str, str | None, float | None, int]]:
    found = rows(job)
    assert len(found) == job.spec.total
    return {row["task_name"]: (row["status"], row["error_category"], row["reward"], row["attempt"]) for row in found}
