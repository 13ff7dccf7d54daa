"""A job whose first rollouts fail alike stops, or asks; what it did not start, `resume` runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.cli.watch import POLL_INTERVAL_SEC
from benchflow.contracts.config import JobConfig
from benchflow.errors import BenchFlowError, ImageBuildError, RewardScalarError, SandboxSetupError
from benchflow.jobs import Job, plan_job, submit
from benchflow.results.summary import summarize

TOTAL = 6
QUESTION = "5 rollouts failed alike, and none was scored"
WAITS = "The job waits for an answer: bench job watch show, on a terminal, asks. Without one it stops."


def errors(number: int) -> list[Exception]:
    """Equal errors, but for what differs from run to run."""
    return [ImageBuildError(f"layer {index} of 3f2a9c1b7e{index} failed", key="dockerfile") for index in range(number)]


async def statuses(worker: InProcessWorker, job: Job) -> list[str]:
    return sorted(result.status for result in await worker.results(job))


async def asking(worker: InProcessWorker) -> Job:
    """Submit a job that asks, and wait until it does."""
    given = {"paths": [worker.task()], "jobs_dir": worker.root / "jobs", "sandbox": "hall", "job_name": "show"}
    job = await submit(plan_job(JobConfig(repeats=TOTAL, concurrency=1, **given)), asks=True)
    worker.jobs.append(job)
    progress = await worker.progress(job, lambda p: p.asked is not None)
    assert progress.asked is not None
    assert progress.asked.message.startswith(QUESTION)
    assert (progress.counts.errored, progress.open_count, progress.waiting) == (5, 0, TOTAL - 5)
    return job


async def test_five_equal_errors_without_a_success_stop_the_job_and_resume_runs_the_rest(
    worker: InProcessWorker,
) -> None:
    worker.provider.faults["play"] = errors(5)
    job = await worker.submit(repeats=TOTAL, concurrency=1, stop_after_errors=5)
    assert await statuses(worker, job) == ["errored"] * 5 + ["not_started"] * (TOTAL - 5)
    unstarted = [result for result in job.results() if result.status == "not_started"]
    for result in unstarted:
        assert result.rewards is None
        assert result.error is not None
        assert (result.error.type, result.error.category) == ("NotStartedError", "not_started")
        assert result.error.key == "dockerfile"
    summary = summarize(job.name, job.spec.total, job.results(), job.spec)
    assert (summary.not_started, summary.not_run) == (len(unstarted), 0)
    again = await worker.submit(repeats=TOTAL, again=("cancelled", "not_started"))
    assert again.started == len(unstarted)
    assert await statuses(worker, again) == ["errored"] * 5 + ["passed"] * (TOTAL - 5)


async def test_a_success_shows_that_nothing_is_wrong_with_all(worker: InProcessWorker) -> None:
    worker.provider.faults["bad"] = errors(TOTAL)
    tasks = [worker.task("good"), worker.task("bad")]
    job = await worker.submit(*tasks, repeats=TOTAL, concurrency=1, stop_after_errors=5)
    assert await statuses(worker, job) == ["errored"] * TOTAL + ["passed"] * TOTAL


async def test_errors_of_other_kinds_do_not_add_up(worker: InProcessWorker) -> None:
    mixed: list[BenchFlowError] = [
        ImageBuildError("no space"),
        ImageBuildError("no network"),
        SandboxSetupError("no space"),
        ImageBuildError("no space", key="image"),
    ]
    worker.provider.faults["play"] = [*mixed, *mixed]
    job = await worker.submit(repeats=8, concurrency=1, stop_after_errors=5)
    assert await statuses(worker, job) == ["errored"] * 8


NO_SCALAR = RewardScalarError("there is no number to branch by", key="verifier.reward_key", remedy="name the key")


async def test_a_job_that_branches_stops_at_the_first_verifier_without_a_scalar(worker: InProcessWorker) -> None:
    worker.provider.faults["keyed"] = [NO_SCALAR] * TOTAL
    # The rollouts of a task that has a number show nothing about the other one.
    tasks = [worker.task("good"), worker.task("keyed")]
    job = await worker.submit(*tasks, repeats=TOTAL, concurrency=1, stop_after_errors=5, mode={"kind": "grpo", "n": 2})
    found = await worker.results(job)
    ended = [result for result in found if result.status != "not_started"]
    keyed = [result for result in ended if result.task_name == "keyed"]
    assert [result.error_category for result in keyed] == ["reward_scalar"]
    assert all(result.error and result.error.remedy == "name the key" for result in keyed)
    assert {result.status for result in ended if result not in keyed} <= {"passed"}
    (stop,) = {result.error.message for result in found if result.error and result.status == "not_started"}
    assert stop.startswith("a verifier has no scalar reward, which rollouts that branch need: ")


async def test_a_job_that_does_not_branch_keeps_rewards_without_a_scalar_from_stopping_it(
    worker: InProcessWorker,
) -> None:
    worker.provider.faults["keyed"] = [NO_SCALAR] * TOTAL
    tasks = [worker.task("good"), worker.task("keyed")]
    job = await worker.submit(*tasks, repeats=TOTAL, concurrency=1, stop_after_errors=5)
    assert await statuses(worker, job) == ["errored"] * TOTAL + ["passed"] * TOTAL


async def test_a_job_may_go_on_whatever_fails(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await worker.submit(repeats=TOTAL, concurrency=1, stop_after_errors=0)
    assert await statuses(worker, job) == ["errored"] * TOTAL


async def test_a_user_who_says_yes_has_the_rest_run(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    await job.decide(True)
    assert await statuses(worker, job) == ["errored"] * TOTAL


async def test_a_user_who_says_no_has_the_job_stopped(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    await job.decide(False)
    assert await statuses(worker, job) == ["errored"] * 5 + ["not_started"] * (TOTAL - 5)


async def test_a_job_that_nobody_answers_stops(worker: InProcessWorker) -> None:
    worker.options(answer_sec=3)
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    assert await statuses(worker, job) == ["errored"] * 5 + ["not_started"] * (TOTAL - 5)


async def test_a_question_outlives_the_run_of_a_workflow(worker: InProcessWorker) -> None:
    worker.options(history_limit=60)
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    for number in (3, 2, 3, 2, 3, 2, 3, 2):
        # Each signal makes the history longer.
        await job.set_concurrency(number)
    await asyncio.gather(*(job.set_concurrency(2) for _ in range(30)))
    progress = await worker.progress(job, lambda p: p.asked is not None)
    assert progress.waiting == TOTAL - 5
    await job.decide(True)
    assert await statuses(worker, job) == ["errored"] * TOTAL


async def test_rollouts_that_are_still_open_may_show_that_nothing_is_wrong_with_all(worker: InProcessWorker) -> None:
    worker.provider.held = True
    tasks = [worker.task("good"), worker.task("bad")]
    worker.provider.faults["bad"] = errors(TOTAL)
    job = await worker.submit(*tasks, repeats=TOTAL, concurrency=6, stop_after_errors=1)
    waiting = await worker.in_turn(6)
    bad = [rollout for rollout in waiting if "/bad/" in rollout]
    worker.provider.release(*bad)
    # Nothing is started while it is open whether all fail.
    progress = await worker.progress(job, lambda p: p.counts.errored == len(bad))
    assert (progress.open_count, progress.asked) == (len(waiting) - len(bad), None)
    worker.provider.release_all()
    assert await statuses(worker, job) == ["errored"] * TOTAL + ["passed"] * TOTAL


# --- on the command line -----------------------------------------------------------------------------------


async def command(
    worker: InProcessWorker, *words: str, terminal: int = PIPE, is_typed: bool = True
) -> asyncio.subprocess.Process:
    """Start a `bench job` command, on a terminal if one is given. is_typed: whether its stdin is that terminal, too."""
    streams = {"stdin": terminal if is_typed else PIPE, "stdout": terminal, "stderr": terminal}
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "24"}
    argv = [sys.executable, "-m", "benchflow.cli", "job", *words]
    return await asyncio.create_subprocess_exec(*argv, cwd=worker.root, env=environment, **streams)


async def test_a_job_that_asks_is_shown_with_its_question(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    shown, _ = await (await command(worker, "show", job.name)).communicate()
    assert shown.decode().count(QUESTION) == shown.decode().count(WAITS) == 1
    await job.decide(False)
    await job.wait()
    shown, _ = await (await command(worker, "show", job.name)).communicate()
    assert WAITS not in shown.decode()


async def test_a_watcher_without_a_terminal_is_told_once_that_the_job_asks(worker: InProcessWorker) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    watching = await command(worker, "watch", job.name)
    assert watching.stdout is not None
    said = b""
    while WAITS.encode() not in said:
        line = await watching.stdout.readline()
        assert line, "it ended"
        said += line
    # For as long as a watcher takes to look again.
    await asyncio.sleep(2 * POLL_INTERVAL_SEC)
    await job.decide(False)
    said += await watching.stdout.read()
    assert await watching.wait() == 1
    assert said.decode().count(WAITS) == 1
    assert said.decode().index(QUESTION) < said.decode().index(WAITS)


@pytest.mark.parametrize(("is_typed", "question"), [(True, "[y/N]"), (False, "The job waits for an answer")])
async def test_ctrl_c_at_the_question_leaves_a_job_that_waits(
    worker: InProcessWorker, is_typed: bool, question: str
) -> None:
    worker.provider.faults["play"] = errors(TOTAL)
    job = await asking(worker)
    screen, terminal = pty.openpty()
    watching = await command(worker, "watch", job.name, terminal=terminal, is_typed=is_typed)
    os.close(terminal)
    said = b""
    while question.encode() not in said:
        said += await asyncio.to_thread(os.read, screen, 65536)
    watching.send_signal(signal.SIGINT)
    # Linux reports EIO once nobody writes to the terminal any more.
    with contextlib.suppress(OSError):
        while read := await asyncio.to_thread(os.read, screen, 65536):
            said += read
    os.close(screen)
    assert await watching.wait() == 130
    assert b"The job waits for an answer" in said.partition(b"Detached.")[2]
    assert b"The job runs on" not in said
    progress = await job.progress()
    assert progress is not None and progress.asked is not None
    await job.decide(False)
    await job.wait()
