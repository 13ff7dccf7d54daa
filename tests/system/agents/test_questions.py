"""An agent asks, and the rollout waits for an answer: however long, whoever dies meanwhile, and only for that one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import (
    LOCAL,
    RECORD,
    SELDOM_DOCKER,
    SOLVE,
    Seen,
    asked,
    assert_nothing_is_left,
    finished,
    rollout_of,
    submit_tasks,
    write_task,
)
from temporalio.api.sdk.v1 import WorkflowMetadata

from benchflow.contracts import names
from benchflow.contracts.rollout import Answer
from benchflow.jobs import Job
from benchflow.paths import StatePaths
from benchflow.stack import running
from benchflow.testing.waiting import until

OPTIONS = [["sure", "allow_once"], ["for-ever", "allow_always"], ["not-now", "reject_once"]]
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "color": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["name", "color"],
}


async def answer(job: Job, task: str, **given: Any) -> None:
    """given: fields of `Answer`."""
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    await handle.signal(names.ANSWER, Answer.model_validate(given))


async def details(job: Job, task: str) -> str:
    """What the Web UI shows of a rollout now."""
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(shown.current_details)


async def ask_job(jobs_dir: Path, *tasks: Path, name: str, **options: Any) -> Job:
    return await submit_tasks(tasks, jobs_dir, job_name=name, permissions="ask", **options)


def answers_sent(seen: Seen) -> list[Any]:
    """What the agent got as answers to its requests."""
    return [message["result"] for message in seen.sent() if "method" not in message]


async def kill_worker() -> None:
    """End the stack's worker by force, and come back when another one asks for work."""
    paths = StatePaths.default()
    before = running(paths)
    assert before is not None and before.worker is not None
    os.kill(before.worker.pid, signal.SIGKILL)

    async def another() -> bool:
        now = running(paths)
        worker = now.worker if now is not None else None
        return worker is not None and worker != before.worker and any(paths.running.glob(f"{worker.pid}-*/ready"))

    await until(another)


@pytest.mark.parametrize("sandbox", [LOCAL, SELDOM_DOCKER])
async def test_a_rollout_waits_for_its_answer_across_the_death_of_its_worker(
    module_jobs: Path, tmp_path: Path, sandbox: str
) -> None:
    task = write_task(
        tmp_path,
        "waits",
        [
            {"say": "so far"},
            {"ask": "may I delete it?", "options": OPTIONS, "record": RECORD, "then": {"for-ever": [SOLVE]}},
            {"say": "done"},
        ],
    )
    job = await ask_job(module_jobs, task, name=f"waits-{sandbox}", sandbox=sandbox)
    progress = await asked(job, "waits")
    question = progress.question
    assert question is not None
    assert (progress.phase, progress.detail) == ("execute", "asks: may I delete it?")
    assert (question.kind, question.text) == ("permission", "may I delete it?")
    assert [(option.id, option.kind) for option in question.options] == [tuple(option) for option in OPTIONS]
    shown = await details(job, "waits")
    assert f"the agent asks (`{question.id}`): may I delete it?" in shown
    assert "- `for-ever` for-ever" in shown

    await kill_worker()
    assert (await asked(job, "waits")).question == question
    # One that is meant for another question is no answer to this one.
    await answer(job, "waits", question="prompt-0:99", option="sure")
    assert (await asked(job, "waits")).question == question
    await answer(job, "waits", question=question.id, option="for-ever")
    await answer(job, "waits", question=question.id, option="not-now")
    seen = (await finished(job))["waits"]

    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.recorded() == ["for-ever"]
    assert answers_sent(seen) == [{"outcome": {"outcome": "selected", "optionId": "for-ever"}}]
    assert [message.get("method") for message in seen.sent()].count("session/prompt") == 1
    assert seen.texts == ["so far", "done"]
    assert len(seen.of("permission_request")) == len(seen.of("permission_answer")) == 1
    assert [line["seq"] for line in seen.lines] == list(range(len(seen.lines)))
    assert_nothing_is_left(seen)


@pytest.mark.local
async def test_the_time_that_a_user_takes_is_not_the_agents(module_jobs: Path, tmp_path: Path) -> None:
    limit = 8.0
    actions = [
        {"ask": "first?", "options": OPTIONS, "record": RECORD},
        {"ask": "second?", "options": OPTIONS, "record": RECORD},
    ]
    config = f"[agent]\ntimeout_sec = {limit}\n"
    patient = write_task(tmp_path, "patient", [*actions, SOLVE], config=config)
    late = write_task(tmp_path, "late", [*actions, SOLVE, {"hang": True}], config=config)
    job = await ask_job(module_jobs, patient, late, name="in-time", agent_idle_timeout_sec=limit)
    first = {task: (await asked(job, task)).question for task in ("patient", "late")}
    # This much time has to pass: it is what must not count.
    await asyncio.sleep(limit + 0.5)
    for task, question in first.items():
        assert question is not None
        await answer(job, task, question=question.id, option="sure")
    for task, question in first.items():
        assert question is not None
        second = (await asked(job, task, other_than=question.id)).question
        assert second is not None and (second.text, second.id != question.id) == ("second?", True)
        await answer(job, task, question=second.id, option="not-now")
    seen = await finished(job)

    assert seen["patient"].recorded() == seen["late"].recorded() == ["sure", "not-now"]
    assert (seen["patient"].result.error, seen["patient"].result.rewards) == (None, {"reward": 1.0})
    # What follows the answers is the agent's time again.
    assert seen["late"].error.category == "agent_timeout"
    assert seen["late"].result.timing["execute"] > 2 * limit


@pytest.mark.local
async def test_forms_are_answered_with_their_content_or_declined(module_jobs: Path, tmp_path: Path) -> None:
    task = write_task(
        tmp_path,
        "fills-in",
        [
            {"elicit": "who, and which?", "schema": FORM, "record": RECORD},
            {"elicit": "once more?", "schema": FORM, "record": RECORD},
            {"ask": "and this?", "options": OPTIONS, "record": RECORD},
            SOLVE,
        ],
    )
    job = await ask_job(module_jobs, task, name="forms")
    form = (await asked(job, "fills-in")).question
    assert form is not None
    assert (form.kind, form.text, form.form) == ("form", "who, and which?", FORM)
    content = {"name": "Ada", "color": "blue"}
    await answer(job, "fills-in", question=form.id, content=content)
    again = (await asked(job, "fills-in", other_than=form.id)).question
    assert again is not None
    await answer(job, "fills-in", question=again.id)
    permission = (await asked(job, "fills-in", other_than=again.id)).question
    assert permission is not None
    await answer(job, "fills-in", question=permission.id)
    seen = (await finished(job))["fills-in"]
    assert seen.recorded() == [{"action": "accept", "content": content}, {"action": "decline"}, "cancelled"]
    assert seen.result.rewards == {"reward": 1.0}
    assert [line["result"] for line in seen.of("elicitation_answer")] == seen.recorded()[:2]


@pytest.mark.parametrize("sandbox", [LOCAL, SELDOM_DOCKER])
async def test_a_rollout_that_waits_can_be_cancelled(module_jobs: Path, tmp_path: Path, sandbox: str) -> None:
    task = write_task(tmp_path, "unheard", [{"say": "so far"}, {"daemon": "exec sleep 75001"}, {"ask": "may I?"}])
    job = await ask_job(module_jobs, task, name=f"unheard-{sandbox}", sandbox=sandbox)
    await asked(job, "unheard")
    await job.cancel_rollout(rollout_of(job, "unheard"))
    seen = (await finished(job))["unheard"]
    assert (seen.result.status, seen.result.rewards, seen.error.category) == ("cancelled", None, "cancelled")
    assert seen.texts == ["so far"]
    assert answers_sent(seen) == []
    assert len(seen.result.sessions) == 1
    assert '"may I?"' in seen.journal("out.jsonl")
    assert_nothing_is_left(seen)


@pytest.mark.local
async def test_a_question_that_makes_no_sense_is_answered_by_nobody(module_jobs: Path, tmp_path: Path) -> None:
    long_options = [{"optionId": str(number), "name": "n" * 10_000, "kind": "allow_once"} for number in range(60)]
    task = write_task(
        tmp_path,
        "confused",
        [
            {"ask": "may I?", "options": ["yes"], "record": RECORD},
            {"ask": "", "options": [], "record": RECORD},
            {"ask": "t" * 100_000, "options": long_options, "record": RECORD},
            SOLVE,
        ],
    )
    job = await ask_job(module_jobs, task, name="confused")
    empty = (await asked(job, "confused")).question
    assert empty is not None
    assert (empty.text, empty.options) == ("the agent asks for permission", [])
    await answer(job, "confused", question=empty.id)
    endless = (await asked(job, "confused", other_than=empty.id)).question
    assert endless is not None
    # As much of it as a workflow can carry.
    assert (endless.text, [option.name for option in endless.options]) == ("t" * 4000, ["n" * 200] * 50)
    await answer(job, "confused", question=endless.id, option="7")
    seen = (await finished(job))["confused"]
    assert seen.recorded() == ["cancelled", "cancelled", "7"]
    nonsense, nothing, _ = seen.of("permission_answer")
    assert nonsense["error"].startswith("AttributeError: ")
    assert "error" not in nothing
    assert seen.result.rewards == {"reward": 1.0}
