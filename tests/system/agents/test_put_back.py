"""A rollout goes back while its agent waits for an answer: it asks again, in the world as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_world import (
    asked,
    assert_nothing_is_left,
    finished,
    rollout_of,
    submit_tasks,
    write_step,
    write_task,
)

from benchflow.contracts import names
from benchflow.contracts.rollout import Answer
from benchflow.jobs import Job
from benchflow.jobs.rollback import put_back
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

OPTIONS = [["sure", "allow_once"], ["not-now", "reject_once"]]
TEST = "cp /app/notes /logs/verifier/notes && echo 1 > /logs/verifier/reward.txt\n"


async def answer(job: Job, task: str, option: str) -> None:
    """Once its agent asks."""
    question = (await asked(job, task)).question
    assert question is not None
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    await handle.signal(names.ANSWER, Answer(question=question.id, option=option))


async def is_acting(job: Job, task: str) -> bool:
    """Whether what the agent needs is there, which may have had to be made."""
    progress = await job.rollout_progress(rollout_of(job, task))
    return progress is not None and progress.phase not in ("plan", "provision", "branch", "connect")


async def test_an_agent_that_waits_for_an_answer_asks_again_in_the_world_as_it_was(
    module_jobs: Path, tmp_path: Path
) -> None:
    task = write_task(
        tmp_path,
        "hesitant",
        {"when": "Do one.", "do": [{"run": "echo first >> notes"}]},
        {
            "when": "Do two.",
            "do": [
                {"run": "echo second >> notes"},
                {"ask": "go on?", "options": OPTIONS, "then": {"sure": [{"run": "echo sure >> notes"}]}},
            ],
        },
        config='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
    )
    for name in ("one", "two"):
        write_step(task, name, TEST)
    branch = {"policy": {"kind": "none"}, "checkpoint": "per_turn"}
    job = await submit_tasks([task], module_jobs, job_name="hesitant", permissions="ask", branch=branch)
    await until(lambda: is_acting(job, "hesitant"), seconds=300)
    await asked(job, "hesitant")
    restored = await put_back(job.engine.client, rollout_of(job, "hesitant"), "n1")
    assert (restored.node, restored.undone) == ("n1", ["n2"])
    await answer(job, "hesitant", "sure")
    seen = (await finished(job))["hesitant"]
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    # What was written before the question is there once.
    assert (seen.paths.verifier_of("two") / "notes").read_text().split() == ["first", "second", "sure"]
    assert len(seen.of("permission_request")) == 1
    assert [rollback.node for rollback in seen.result.rollbacks] == ["n1"]
    assert seen.result.rollbacks[0].directory == "rollbacks/1"
    assert list(StatePaths.default().checkpoints.glob("*.json")) == []
    assert_nothing_is_left(seen)
