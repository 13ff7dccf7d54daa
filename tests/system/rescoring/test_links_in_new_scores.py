"""Links where new scores are to be written, or where their evidence lies: none is followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stored_jobs import Past, answer, files_below, store_job, write_task

from benchflow.paths import JobPaths, RolloutPaths
from benchflow.rescoring import RescoredRollout, RescoringRequest, rescore

NAME = "new"


async def stored(tmp_path: Path, jobs: Path, past: Past = Past()) -> JobPaths:  # noqa: B008
    """A job of one rollout."""
    return JobPaths(await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": past}))


def rollout_of(job: JobPaths) -> RolloutPaths:
    [directory] = job.root.glob("one__*")
    return RolloutPaths(directory)


async def rescored(job: JobPaths) -> RescoredRollout:
    [rollout] = (await rescore(job.root, RescoringRequest(name=NAME))).rollouts
    return rollout


@pytest.mark.parametrize("name", ["verifier", "judge", "rewards.jsonl", "steps"])
async def test_a_link_among_new_scores_is_replaced_and_not_followed(jobs: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    for file in ("verifier/reward.txt", "judge/answer.json", "rewards.jsonl", "result.json"):
        (outside / file).parent.mkdir(parents=True, exist_ok=True)
        (outside / file).write_text("theirs\n")
    job = await stored(tmp_path, jobs)
    place = rollout_of(job).root / "rescored" / NAME
    place.mkdir(parents=True)
    (place / name).symlink_to(outside / name if (outside / name).exists() else outside)
    before = files_below(outside)
    assert (await rescored(job)).error is None
    assert files_below(outside) == before
    assert [path for path in place.rglob("*") if path.is_symlink()] == []
    assert (place / "result.json").is_file()


async def test_answers_of_judges_that_were_given_before_stay(jobs: Path, tmp_path: Path) -> None:
    job = await stored(tmp_path, jobs)
    place = rollout_of(job).root / "rescored" / NAME
    for name in ("judge/one.json", "verifier/judge/one.json", "verifier/reward.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
    assert (await rescored(job)).error is None
    assert (place / "judge/one.json").is_file()
    assert not (place / "verifier/judge/one.json").exists() and not (place / "verifier/reward.txt").exists()


async def test_a_workspace_that_is_a_link_goes_into_no_sandbox(jobs: Path, tmp_path: Path) -> None:
    job = await stored(tmp_path, jobs, Past(workspace=answer))
    kept = rollout_of(job).evidence() / "workspace.tar"
    kept.rename(tmp_path / "private.tar")
    kept.symlink_to(tmp_path / "private.tar")
    error = (await rescored(job)).error
    assert error is not None and "no regular file" in error.message
