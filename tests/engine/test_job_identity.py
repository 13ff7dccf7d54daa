"""One name is one job: found while it runs, done when it is done, refused when it is another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow import errors
from benchflow.contracts.base import MAX_MESSAGE_BYTES
from benchflow.contracts.config import JobConfig
from benchflow.jobs import open_job


async def test_a_running_job_is_attached_to(worker: InProcessWorker) -> None:
    worker.provider.held = True
    first = await worker.submit(repeats=2)
    await worker.in_turn(2)
    second = await worker.submit(repeats=2)
    assert (first.started, first.attached, second.started, second.attached) == (2, False, 0, True)
    worker.provider.release_all()
    assert await worker.results(second) == await worker.results(first)
    assert sum(worker.provider.turns.values()) == 2


async def test_a_job_that_is_done_does_nothing_when_submitted_again(worker: InProcessWorker) -> None:
    before = await worker.results(await worker.submit(repeats=3))
    again = await worker.submit(repeats=3)
    assert (again.started, again.attached) == (0, False)
    assert await worker.results(again) == before
    assert sum(worker.provider.turns.values()) == 3


async def test_only_what_has_no_result_is_run(worker: InProcessWorker) -> None:
    results = await worker.results(await worker.submit(repeats=4))
    for result in results[1:3]:
        shutil.rmtree(Path(str(result.directory)))
    again = await worker.submit(repeats=4)
    assert again.started == 2
    assert [result.repeat for result in await worker.results(again)] == [0, 1, 2, 3]
    assert sorted(worker.provider.turns.values()) == [1, 1, 2, 2]
    assert len(again.directory.results.read_text().splitlines()) == 4


async def test_a_status_may_be_run_again(worker: InProcessWorker) -> None:
    worker.provider.reward = b"0.5"
    await worker.results(await worker.submit(repeats=2))
    worker.provider.reward = b"1.0"
    again = await worker.submit(repeats=2, again=("failed",))
    assert again.started == 2
    results = await worker.results(again)
    assert [result.status for result in results] == ["passed", "passed"]
    first = Path(str(results[0].directory)) / "attempts" / "1" / "result.json"
    assert '"status": "failed"' in first.read_text()


async def test_a_name_with_another_specification_is_refused_with_the_differences(worker: InProcessWorker) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"agents": ["nop"]}, "agents: ['oracle'] → ['nop']"),
        ({"repeats": 2}, "repeats: 1 → 2"),
        ({"sandbox": "noop"}, "run.sandbox: hall → noop"),
        ({"agent_timeout_sec": 7}, "run.agent_timeout_sec: absent → 7.0"),
        ({"deadline_sec": 60}, "run.deadline_sec: 21600.0 → 60.0"),
        ({"retry": {"max_retries": 9}}, "retry.max_retries: 2 → 9"),
    ]
    await worker.results(await worker.submit())
    for change, difference in changes:
        with pytest.raises(errors.JobConflictError) as caught:
            await worker.submit(**change)
        assert difference in caught.value.message
        assert caught.value.key == "job_name"
        assert caught.value.file == str(worker.root / "jobs" / "show" / "config.json")
        assert caught.value.remedy
    assert sum(worker.provider.turns.values()) == 1


async def test_a_task_that_changed_is_noticed(worker: InProcessWorker) -> None:
    task = worker.task()
    await worker.results(await worker.submit(task))
    (task / "instruction.md").write_text("Play louder.\n")
    with pytest.raises(errors.JobConflictError, match=r"task play: [0-9a-f]{12} → [0-9a-f]{12}"):
        await worker.submit(task)


async def test_a_task_more_is_named_in_the_differences(worker: InProcessWorker) -> None:
    await worker.results(await worker.submit(worker.task()))
    with pytest.raises(errors.JobConflictError, match="task second: absent → "):
        await worker.submit(worker.task(), worker.task("second"))


async def test_what_does_not_change_the_results_may_differ(worker: InProcessWorker) -> None:
    await worker.results(await worker.submit(concurrency=1))
    moved = worker.root / "elsewhere" / "play"
    shutil.copytree(worker.task(), moved)
    again = await worker.submit(moved, concurrency=3)
    assert again.started == 0


@pytest.mark.parametrize("name", ["../up", "a b", "", ".hidden", "x" * 81, "ä", "a/b", "-n"])
async def test_an_odd_name_is_refused_with_one_that_would_do(worker: InProcessWorker, name: str) -> None:
    if name == "":
        job = await worker.submit(job_name=name)
        assert job.name.startswith("play-")
        await job.wait()
        return
    with pytest.raises(errors.ConfigError) as caught:
        await worker.submit(job_name=name)
    assert caught.value.key == "job_name"
    assert not (worker.root / "jobs").exists()
    proposal = str(caught.value.remedy).rpartition(": ")[2].strip("'")
    assert (await worker.submit(job_name=proposal)).name == proposal


@pytest.mark.parametrize(
    "name", [pytest.param("a", marks=pytest.mark.long), pytest.param("v1.2_final-3", marks=pytest.mark.long), "x" * 80]
)
async def test_an_allowed_name_is_the_directorys_and_the_workflows(worker: InProcessWorker, name: str) -> None:
    job = await worker.submit(job_name=name)
    (result,) = await worker.results(job)
    assert job.directory.root == worker.root / "jobs" / name
    assert job.id.startswith(f"job/{name}-")
    assert result.workflow_id.startswith(f"{job.id}/r/")


async def test_a_job_is_opened_by_name(worker: InProcessWorker) -> None:
    submitted = await worker.submit(repeats=2)
    opened = await open_job("show", worker.root / "jobs")
    assert (opened.id, opened.spec) == (submitted.id, submitted.spec)
    assert len(await worker.results(opened)) == 2
    with pytest.raises(errors.JobNotFoundError):
        await opened.pause()
    with pytest.raises(errors.JobNotFoundError) as caught:
        await open_job("absent", worker.root / "jobs")
    assert caught.value.file == str(worker.root / "jobs" / "absent")


async def test_a_rollout_that_fits_into_no_message_is_refused_at_submit(worker: InProcessWorker) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        await worker.submit(judge={"base_url": "http://judge.example/" + "x" * MAX_MESSAGE_BYTES})
    assert refused.value.key == "run" and str(MAX_MESSAGE_BYTES) in refused.value.message


def test_an_unknown_category_of_retries_is_refused_with_the_list(tmp_path: Path) -> None:
    JobConfig.model_validate({"paths": [tmp_path], "retry": {"categories": ["internal", "sandbox_lost"]}})
    with pytest.raises(ValueError, match=r"'sandbx' is no category of errors; they are: agent, .*sandbox_lost"):
        JobConfig.model_validate({"paths": [tmp_path], "retry": {"categories": ["sandbx"]}})
