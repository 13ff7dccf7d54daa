"""While an agent waits for an answer, what the verifier would say can be asked, and changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import (
    DOCKER,
    LOCAL,
    SELDOM_DOCKER,
    SELDOM_LOCAL,
    SOLVE,
    asked,
    assert_nothing_is_left,
    finished,
    rollout_of,
    submit_tasks,
    write_task,
)
from temporalio.client import WorkflowUpdateFailedError

from benchflow.contracts import names
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Answer
from benchflow.jobs import Job

OPTIONS = [["go-on", "allow_once"], ["stop", "reject_once"]]

# Scores what is there, and what is not: a trace of an earlier verifier would be told by the metric.
TEST = """
mkdir -p /logs/verifier
ran=$(ls -d /logs/verifier/* /app/.pytest_cache 2>/dev/null | wc -l)
reward=0; [ -e /app/half ] && reward=0.5; [ -e /app/answer ] && reward=1
printf '{"reward": %s, "left": %s}' "$reward" "$ran" > /logs/verifier/reward.json
"""


async def look(job: Job, task: str) -> VerifyResult:
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    said: VerifyResult = await handle.execute_update(names.SOFT_VERIFY, result_type=VerifyResult)
    return said


async def answer(job: Job, task: str, question: str) -> None:
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    await handle.signal(names.ANSWER, Answer(question=question, option="go-on"))


def where(verify_in: str, *sandboxes: Any) -> list[Any]:
    return [pytest.param(*it.values, verify_in, marks=it.marks, id=f"{it.values[0]}-{verify_in}") for it in sandboxes]


# Each sandbox and each place of the verifier in every run, all four in a long one.
@pytest.mark.parametrize(
    ("sandbox", "verify_in"), [*where("shared", LOCAL, SELDOM_DOCKER), *where("separate", SELDOM_LOCAL, DOCKER)]
)
async def test_a_look_scores_the_world_as_it_is_and_the_agent_goes_on(
    module_jobs: Path, tmp_path: Path, sandbox: str, verify_in: str
) -> None:
    turn = [
        {"ask": "shall I begin?", "options": OPTIONS},
        {"write": "half", "content": "."},
        {"ask": "shall I finish?", "options": OPTIONS},
        SOLVE,
    ]
    task = write_task(tmp_path, "looked-at", turn, test=TEST)
    options = {"permissions": "ask", "sandbox": sandbox, "verify_in": verify_in}
    job = await submit_tasks([task], module_jobs, job_name=f"looks-{sandbox}-{verify_in}", **options)
    first = (await asked(job, "looked-at")).question
    assert first is not None
    assert (await look(job, "looked-at")).rewards == {"reward": 0.0, "left": 1.0}
    await answer(job, "looked-at", first.id)
    second = (await asked(job, "looked-at", other_than=first.id)).question
    assert second is not None
    # One at a time: of two, one is told that it has to wait, or comes after the other.
    looks = await asyncio.gather(*(look(job, "looked-at") for _ in range(2)), return_exceptions=True)
    said = [one for one in looks if isinstance(one, VerifyResult)]
    assert said and all(one.rewards == {"reward": 0.5, "left": 1.0} for one in said)
    assert {one.metadata.get("verified_in", "shared") for one in said} == {verify_in}
    assert all(isinstance(one, VerifyResult | WorkflowUpdateFailedError) for one in looks)
    await answer(job, "looked-at", second.id)
    seen = (await finished(job))["looked-at"]
    assert seen.result.rewards == {"reward": 1.0, "left": 1.0}
    assert (seen.result.error, seen.result.verifier_error) == (None, None)
    assert [*module_jobs.rglob("evidence/room")] == []
    assert_nothing_is_left(seen)


@pytest.mark.local
async def test_a_rollout_that_waits_for_nothing_cannot_be_looked_at(module_jobs: Path, tmp_path: Path) -> None:
    broken = write_task(tmp_path, "broken", [{"ask": "?", "options": OPTIONS}, SOLVE], test="exit 3\n")
    busy = write_task(tmp_path, "busy", [{"hang": True}])
    job = await submit_tasks([broken, busy], module_jobs, job_name="no-looks", permissions="ask", sandbox="local")
    question = (await asked(job, "broken")).question
    assert question is not None
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await look(job, "busy")
    assert "in the middle of its turn" in str(caught.value.cause)
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await look(job, "broken")
    assert "wrote no reward" in str(caught.value.cause)
    # A look that fails is nobody's end.
    assert (await asked(job, "broken")).question == question
    await job.cancel()
    await finished(job)
