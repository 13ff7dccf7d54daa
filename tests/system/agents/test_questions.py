"""An agent asks, and the rollout waits for an answer: however long, whoever dies or looks meanwhile, for that one only.

The agents of all these rollouts ask at the same time; each test then talks to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import (
    RECORD,
    SOLVE,
    Json,
    Seen,
    asked,
    assert_nothing_is_left,
    declare,
    finished,
    index_of,
    rollout_of,
    submit_tasks,
    write_step,
    write_task,
)
from support.made_once import attempt_of
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from benchflow import stack
from benchflow.contracts import temporal_names
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout_records import Answer
from benchflow.errors import JobNotFoundError
from benchflow.hosting.checkpoint_records import read_checkpoint_record
from benchflow.jobs import Job, open_job
from benchflow.jobs.rollback_request import roll_back_running
from benchflow.paths import StatePaths
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal

OPTIONS = [["sure", "allow_once"], ["for-ever", "allow_always"], ["not-now", "reject_once"]]
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "color": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["name", "color"],
}

WAITS = [
    {"say": "so far"},
    {"ask": "may I delete it?", "options": OPTIONS, "record": RECORD, "then": {"for-ever": [SOLVE]}},
    {"say": "done"},
]
FILLS_IN = [
    {"elicit": "who, and which?", "schema": FORM, "record": RECORD},
    {"elicit": "once more?", "schema": FORM, "record": RECORD},
    {"ask": "and this?", "options": OPTIONS, "record": RECORD},
    SOLVE,
]
LONG_OPTIONS = [{"optionId": str(number), "name": "n" * 10_000, "kind": "allow_once"} for number in range(60)]
CONFUSED = [
    {"ask": "may I?", "options": ["yes"], "record": RECORD},
    {"ask": "", "options": [], "record": RECORD},
    {"ask": "t" * 100_000, "options": LONG_OPTIONS, "record": RECORD},
    SOLVE,
]
UNHEARD = [{"say": "so far"}, {"daemon": "exec sleep 75001"}, {"ask": "may I?"}]
LOOKED_AT = [
    {"ask": "shall I begin?", "options": OPTIONS},
    {"write": "half", "content": "."},
    {"ask": "shall I finish?", "options": OPTIONS},
    SOLVE,
]
# Scores what is there, and what is not: a trace of an earlier verifier would be told by the metric.
LOOK_TEST = """
mkdir -p /logs/verifier
ran=$(ls -d /logs/verifier/* /app/.pytest_cache 2>/dev/null | wc -l)
reward=0; [ -e /app/half ] && reward=0.5; [ -e /app/answer ] && reward=1
printf '{"reward": %s, "left": %s}' "$reward" "$ran" > /logs/verifier/reward.json
"""
HESITANT = [
    {"when": "Do one.", "do": [{"run": "echo first >> notes"}]},
    {
        "when": "Do two.",
        "do": [
            {"run": "echo second >> notes"},
            {"ask": "go on?", "options": OPTIONS, "then": {"sure": [{"run": "echo sure >> notes"}]}},
        ],
    },
]
NOTES_TEST = "cp /app/notes /logs/verifier/notes && echo 1 > /logs/verifier/reward.txt\n"

LIMIT_SEC = 8.0
PATIENT = [{"ask": f"{nth}?", "options": OPTIONS, "record": RECORD} for nth in ("first", "second")]

SELDOM = ("unheard", "looked-at-aside", "patient")
"""The tasks that only `long` tests need."""

Asking = Callable[..., Awaitable[Job]]
"""The job of a task, by the name of the task, and of others that its test needs."""


def write_jobs(root: Path) -> dict[str, tuple[list[Path], Json]]:
    """Write all tasks. Returns tasks and options of each job."""
    steps = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    hesitant = write_task(root, "hesitant", *HESITANT, config=steps)
    for name in ("one", "two"):
        write_step(hesitant, name, NOTES_TEST)
    patient = write_task(root, "patient", [*PATIENT, SOLVE], config=f"[agent]\ntimeout_sec = {LIMIT_SEC}\n")
    aside = write_task(root, "looked-at-aside", LOOKED_AT, test=LOOK_TEST)
    # In the order in which they are answered, and few at a time: all of them would leave nobody else room on this host.
    tasks = [
        write_task(root, "waits", WAITS),
        write_task(root, "fills-in", FILLS_IN),
        write_task(root, "confused", CONFUSED),
        write_task(root, "unheard", UNHEARD),
        write_task(root, "looked-at", LOOKED_AT, test=LOOK_TEST),
        write_task(root, "broken", [{"ask": "?", "options": OPTIONS}, SOLVE], test="exit 3\n"),
        write_task(root, "busy", [{"hang": True}]),
    ]
    return {
        "asks": (tasks, {"concurrency": 3}),
        "patient": ([patient], {"agent_idle_timeout_sec": LIMIT_SEC}),
        "aside": ([aside], {"verify_in": "separate"}),
        "hesitant": ([hesitant], {"branch": {"policy": {"kind": "none"}, "checkpoint": "per_turn"}}),
    }


class Submitted:
    """The jobs of this module, by the name of each of their tasks: the job's name and directory."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, Path]] = {}
        self._all: list[tuple[str, Path]] = []

    async def submit(self, root: Path, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
        """Submit all tasks but those in `without`, or some again."""
        for name, (tasks, options) in write_jobs(root).items():
            wanted = [task for task in tasks if task.name not in without and (not only or task.name in only)]
            if wanted:
                await submit_tasks(wanted, root / "jobs", job_name=name, permissions="ask", **options)
                self.jobs |= {task.name: (name, root / "jobs") for task in wanted}
                self._all.append((name, root / "jobs"))

    async def submit_again(self, root: Path, *tasks: str) -> None:
        """Submit some tasks again instead of their rollouts of before."""
        for task in tasks:
            job = await open_job(*self.jobs[task])
            with contextlib.suppress(JobNotFoundError):
                await job.cancel_rollout(rollout_of(job, task))
        await self.submit(root, tasks)

    async def end(self) -> None:
        """End what a test that failed, or did not run, has left to wait."""
        for name, directory in self._all:
            job = await open_job(name, directory)
            if await job.is_running():
                await job.cancel()
            await job.wait()


@pytest.fixture(scope="module")
def submitted(
    request: pytest.FixtureRequest, module_jobs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Submitted]:
    """Submit all jobs at once, so that their agents ask at the same time."""
    submitted = Submitted()
    items = [item for item in request.session.items if item.path == request.path]
    is_long = any(item.get_closest_marker("long") is not None for item in items)
    asyncio.run(submitted.submit(tmp_path_factory.mktemp("asking"), without=() if is_long else SELDOM))
    yield submitted
    asyncio.run(submitted.end())


@pytest.fixture
def asking(request: pytest.FixtureRequest, submitted: Submitted, tmp_path: Path) -> Asking:
    async def job_of(*tasks: str) -> Job:
        if attempt_of(request) > 1:
            await submitted.submit_again(tmp_path, *tasks)
        return await open_job(*submitted.jobs[tasks[0]])

    return job_of


async def answer(job: Job, task: str, **given: Any) -> None:
    """Answer what a task's agent asks. given: fields of `Answer`."""
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    await handle.signal(temporal_names.ANSWER, Answer.model_validate(given))


async def details(job: Job, task: str) -> str:
    """Return what the Web UI shows of a rollout now."""
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(shown.current_details)


async def ended(job: Job, task: str) -> Seen:
    """Return a rollout once it is over, which other rollouts of its job need not be."""
    with contextlib.suppress(WorkflowFailureError):
        await job.engine.client.get_workflow_handle(rollout_of(job, task)).result()
    (result,) = [result for result in job.results() if result.task_name == task]
    return Seen(result)


def answers_sent(seen: Seen) -> list[Any]:
    """Return what the agent got as answers to its requests."""
    return [message["result"] for message in seen.sent() if "method" not in message]


# --- answers --------------------------------------------------------------------------------------------


@pytest.mark.local
async def test_a_rollout_waits_for_the_answer_to_its_question(asking: Asking) -> None:
    job = await asking("waits")
    await check_waiting(job, None)


async def check_waiting(job: Job, meanwhile: Callable[[], Any] | None) -> None:
    progress = await asked(job, "waits")
    question = progress.question
    assert question is not None
    assert (progress.phase, progress.detail) == ("execute", "asks: may I delete it?")
    assert (question.kind, question.text) == ("permission", "may I delete it?")
    assert [(option.id, option.kind) for option in question.options] == [tuple(option) for option in OPTIONS]
    shown = await details(job, "waits")
    assert f"the agent asks (`{question.id}`): `may I delete it?`" in shown
    assert "- for-ever for-ever" in shown
    if meanwhile is not None:
        await meanwhile()
        assert (await asked(job, "waits")).question == question
    # One that is meant for another question is no answer to this one.
    await answer(job, "waits", question="prompt-0:99", option="sure")
    assert (await asked(job, "waits")).question == question
    await answer(job, "waits", question=question.id, option="for-ever")
    await answer(job, "waits", question=question.id, option="not-now")
    seen = await ended(job, "waits")

    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.recorded() == ["for-ever"]
    assert answers_sent(seen) == [{"outcome": {"outcome": "selected", "optionId": "for-ever"}}]
    assert [message.get("method") for message in seen.sent()].count("session/prompt") == 1
    assert seen.texts == ["so far", "done"]
    assert len(seen.of("permission_request")) == len(seen.of("permission_answer")) == 1
    assert [line["seq"] for line in seen.lines] == list(range(len(seen.lines)))
    assert_nothing_is_left(seen)


@pytest.mark.local
async def test_forms_are_answered_with_their_content_or_declined(asking: Asking) -> None:
    job = await asking("fills-in")
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
    seen = await ended(job, "fills-in")
    assert seen.recorded() == [{"action": "accept", "content": content}, {"action": "decline"}, "cancelled"]
    assert seen.result.rewards == {"reward": 1.0}
    assert [line["result"] for line in seen.of("elicitation_answer")] == seen.recorded()[:2]


@pytest.mark.local
async def test_a_question_that_makes_no_sense_is_answered_by_nobody(asking: Asking) -> None:
    job = await asking("confused")
    empty = (await asked(job, "confused")).question
    assert empty is not None
    assert (empty.text, empty.options) == ("the agent asks for permission", [])
    await answer(job, "confused", question=empty.id)
    endless = (await asked(job, "confused", other_than=empty.id)).question
    assert endless is not None
    # As much of it as a workflow can carry.
    assert (endless.text, [option.name for option in endless.options]) == ("t" * 4000, ["n" * 200] * 50)
    await answer(job, "confused", question=endless.id, option="7")
    seen = await ended(job, "confused")
    assert seen.recorded() == ["cancelled", "cancelled", "7"]
    nonsense, nothing, _ = seen.of("permission_answer")
    assert nonsense["error"].startswith("AttributeError: ")
    assert "error" not in nothing
    assert seen.result.rewards == {"reward": 1.0}


@pytest.mark.long
@pytest.mark.local
async def test_a_rollout_that_waits_can_be_cancelled(asking: Asking) -> None:
    job = await asking("unheard")
    await asked(job, "unheard")
    await job.cancel_rollout(rollout_of(job, "unheard"))
    seen = await ended(job, "unheard")
    assert (seen.result.status, seen.result.rewards, seen.error.category) == ("cancelled", None, "cancelled")
    assert seen.texts == ["so far"]
    assert answers_sent(seen) == []
    assert len(seen.result.sessions) == 1
    assert '"may I?"' in seen.journal("out.jsonl")
    assert_nothing_is_left(seen)


# --- looks ----------------------------------------------------------------------------------------------


async def look(job: Job, task: str) -> VerifyResult:
    handle = job.engine.client.get_workflow_handle(rollout_of(job, task))
    said: VerifyResult = await handle.execute_update(temporal_names.SOFT_VERIFY, result_type=VerifyResult)
    return said


@pytest.mark.local
@pytest.mark.parametrize(
    ("task", "verify_in"),
    [("looked-at", "shared"), pytest.param("looked-at-aside", "separate", marks=pytest.mark.long)],
)
async def test_a_look_scores_the_world_as_it_is_and_the_agent_goes_on(
    asking: Asking, task: str, verify_in: str
) -> None:
    await check_looks(await asking(task), task, verify_in)


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.parametrize("verify_in", ["shared", "separate"])
async def test_a_look_in_docker_scores_the_world_as_it_is(module_jobs: Path, tmp_path: Path, verify_in: str) -> None:
    task = write_task(tmp_path, "looked-at", LOOKED_AT, test=LOOK_TEST)
    options = {"permissions": "ask", "sandbox": "docker", "verify_in": verify_in}
    await check_looks(await submit_tasks([task], tmp_path / "jobs", **options), "looked-at", verify_in)


async def check_looks(job: Job, task: str, verify_in: str) -> None:
    first = (await asked(job, task)).question
    assert first is not None
    assert (await look(job, task)).rewards == {"reward": 0.0, "left": 1.0}
    await answer(job, task, question=first.id, option="sure")
    second = (await asked(job, task, other_than=first.id)).question
    assert second is not None
    # One at a time: of two, one is told that it has to wait, or comes after the other.
    looks = await asyncio.gather(*(look(job, task) for _ in range(2)), return_exceptions=True)
    said = [one for one in looks if isinstance(one, VerifyResult)]
    assert said and all(one.rewards == {"reward": 0.5, "left": 1.0} for one in said)
    assert {one.metadata.get("verified_in", "shared") for one in said} == {verify_in}
    assert all(isinstance(one, VerifyResult | WorkflowUpdateFailedError) for one in looks)
    await answer(job, task, question=second.id, option="sure")
    seen = await ended(job, task)
    assert seen.result.rewards == {"reward": 1.0, "left": 1.0}
    assert (seen.result.error, seen.result.verifier_error) == (None, None)
    assert [*seen.paths.root.rglob("evidence/room")] == []
    assert_nothing_is_left(seen)


@pytest.mark.local
async def test_a_rollout_that_waits_for_nothing_cannot_be_looked_at(asking: Asking) -> None:
    job = await asking("broken", "busy")
    question = (await asked(job, "broken")).question
    assert question is not None

    async def busy_is_acting() -> bool:
        return await is_acting(job, "busy")

    await until(busy_is_acting)
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await look(job, "busy")
    assert "in the middle of its turn" in str(caught.value.cause)
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await look(job, "broken")
    assert "wrote no reward" in str(caught.value.cause)
    # A look that fails is nobody's end.
    assert (await asked(job, "broken")).question == question
    for task in ("broken", "busy"):
        await job.cancel_rollout(rollout_of(job, task))


async def is_acting(job: Job, task: str) -> bool:
    """Return whether a rollout's agent has a session."""
    progress = await job.rollout_progress(rollout_of(job, task))
    return progress is not None and progress.phase not in ("plan", "provision", "branch", "connect")


# --- back, and time -------------------------------------------------------------------------------------


@pytest.mark.local
async def test_an_agent_that_waits_for_an_answer_asks_again_in_the_world_as_it_was(asking: Asking) -> None:
    job = await asking("hesitant")
    question = (await asked(job, "hesitant")).question
    assert question is not None
    restored = await roll_back_running(job.engine.client, rollout_of(job, "hesitant"), "n1")
    assert (restored.node, restored.undone) == ("n1", ["n2"])
    again = (await asked(job, "hesitant")).question
    assert again is not None
    await answer(job, "hesitant", question=again.id, option="sure")
    seen = (await finished(job))["hesitant"]
    assert (seen.result.error, seen.result.reward) == (None, 1.0)
    # What was written before the question is there once.
    assert (seen.paths.verifier_of("two") / "notes").read_text().split() == ["first", "second", "sure"]
    assert len(seen.of("permission_request")) == 1
    assert [rollback.node for rollback in seen.result.rollbacks] == ["n1"]
    assert seen.result.rollbacks[0].directory == "rollbacks/1"
    kept = [read_checkpoint_record(file) for file in StatePaths.default().checkpoints.glob("*.json")]
    assert rollout_of(job, "hesitant") not in [one.workflow for one in kept if one is not None]
    assert_nothing_is_left(seen)


@pytest.mark.long
@pytest.mark.local
async def test_the_time_that_a_user_takes_is_not_the_agents(asking: Asking) -> None:
    job = await asking("patient")
    seen = await answer_late(job, "patient")
    assert seen.recorded() == ["sure", "not-now"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})


@pytest.mark.local
@pytest.mark.long
async def test_what_follows_the_answers_is_the_agents_time_again(module_jobs: Path, tmp_path: Path) -> None:
    task = write_task(
        tmp_path, "late", [*PATIENT, SOLVE, {"hang": True}], config=f"[agent]\ntimeout_sec = {LIMIT_SEC}\n"
    )
    options = {"permissions": "ask", "agent_idle_timeout_sec": LIMIT_SEC}
    seen = await answer_late(await submit_tasks([task], tmp_path / "jobs", **options), "late")
    assert seen.recorded() == ["sure", "not-now"]
    assert seen.error.category == "agent_timeout"
    assert min(seen.result.timing["wait"], seen.result.timing["execute"]) > LIMIT_SEC


async def answer_late(job: Job, task: str) -> Seen:
    """Answer the first question when more time has passed than the agent may take, and the second at once."""
    first = (await asked(job, task)).question
    assert first is not None
    paths = job.directory.rollout(job.spec.rollout_name(job.id, index_of(job, task)))
    (line,) = [line for line in read_journal(paths.trajectory) if line["type"] == "permission_request"]
    asked_at = datetime.fromisoformat(line["ts"]).timestamp()
    await until(lambda: time.time() > asked_at + LIMIT_SEC + 0.5)
    await answer(job, task, question=first.id, option="sure")
    second = (await asked(job, task, other_than=first.id)).question
    assert second is not None and (second.text, second.id != first.id) == ("second?", True)
    await answer(job, task, question=second.id, option="not-now")
    return (await finished(job))[task]


# --- whoever dies ---------------------------------------------------------------------------------------


@pytest.fixture
def own_stack(kept: StatePaths, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatePaths]:
    """A stack whose worker nobody else needs."""
    state.mkdir(mode=0o700)
    paths = StatePaths(state)
    paths.toolboxes.symlink_to(kept.toolboxes)
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
        monkeypatch.delenv(name, raising=False)
    declare(tmp_path / "agents")
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path / "agents"))
    yield paths
    stack.stop_stack(paths)


@pytest.mark.local
@pytest.mark.long
async def test_a_rollout_waits_for_its_answer_across_the_death_of_its_worker(
    own_stack: StatePaths, tmp_path: Path
) -> None:
    async def kill_worker() -> None:
        before = stack.find_running(own_stack)
        assert before is not None and before.worker is not None
        os.kill(before.worker.pid, signal.SIGKILL)

        async def another() -> bool:
            now = stack.find_running(own_stack)
            worker = now.worker if now is not None else None
            return (
                worker is not None and worker != before.worker and any(own_stack.running.glob(f"{worker.pid}-*/ready"))
            )

        await until(another)

    job = await submit_tasks([write_task(tmp_path, "waits", WAITS)], tmp_path / "jobs", permissions="ask")
    await check_waiting(job, kill_worker)
