"""Stored rollouts judged again: what was answered is not asked twice, and a given rubric takes the verifier's place."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stored_jobs import Past, store_job, write_task

from benchflow.errors import ConfigError
from benchflow.rescoring import RescoredRollout, RescoringRequest, rescore
from benchflow.testing.scripted_model import ScriptedModel

RUBRIC = """
[[criterion]]
id = "honest"
description = "It says what it wants."

[[criterion]]
id = "short"
description = "It is short."
type = "likert"
weight = 3
"""

MODULE = """
from benchflow import RewardEvent
from datetime import UTC, datetime

class Loudness:
    name = "loudness"

    async def score(self, node):
        return RewardEvent(value=len(node.answer) / 100, source="loudness", ts=datetime.now(UTC))
"""


def says(score: float, about: str) -> dict[str, Any]:
    said = {"name": "verdict", "arguments": {"score": score, "reasoning": f"It is so: {about}"}}
    return {"when": {"anywhere": about}, "tools": [said], "times": "always"}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel([says(1, "It says what it wants."), says(3, "It is short.")]) as scripted:
        yield scripted


def judged_by(model: ScriptedModel, **options: Any) -> RescoringRequest:
    return RescoringRequest(judge={"model": "openai/scripted", "base_url": model.openai_base_url}, **options)


async def the_one(job: Path, request: RescoringRequest) -> RescoredRollout:
    [rollout] = (await rescore(job, request)).rollouts
    return rollout


@pytest.fixture
def rubric(tmp_path: Path) -> Path:
    file = tmp_path / "style.toml"
    file.write_text(RUBRIC)
    return file


async def test_a_rubric_scores_instead_of_the_verifier(
    jobs: Path, tmp_path: Path, rubric: Path, model: ScriptedModel
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)

    one = await the_one(job, judged_by(model, rubric=rubric))

    assert one.rewards == {"reward": 0.625, "honest": 1.0, "short": 0.5}
    assert (one.outcome, one.verifier) == ("changed", None)
    assert set(one.changes) == {"reward", "honest", "short"}
    assert one.judge is not None and (one.judge.asked, one.judge.recorded) == (2, 0)
    shown = json.dumps(model.calls[0].body)
    assert "I want 1.0." in shown, "the trajectory is shown"


async def test_the_files_of_a_kept_workspace_are_shown_to_the_judge(
    jobs: Path, tmp_path: Path, rubric: Path, model: ScriptedModel
) -> None:
    past = Past({None: 1.0}, workspace=lambda value: {"deep/report.md": "All is well."})
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": past})

    await the_one(job, judged_by(model, rubric=rubric))

    shown = json.dumps(model.calls[0].body)
    assert "All is well." in shown and "app/deep/report.md" in shown


async def test_a_changed_rubric_asks_only_what_it_asks_anew_and_changes_only_that(
    jobs: Path, tmp_path: Path, rubric: Path, model: ScriptedModel
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)
    before = await the_one(job, judged_by(model, rubric=rubric, name="first"))
    as_first_scored(job, "first")
    rubric.write_text(RUBRIC.replace("weight = 3", "weight = 1"))

    after = await the_one(job, judged_by(model, rubric=rubric))

    assert before.rewards is not None
    assert after.rewards == before.rewards | {"reward": 0.75}
    assert after.judge is not None and (after.judge.asked, after.judge.recorded) == (0, 2)
    assert len(model.calls) == 2


async def test_judges_are_asked_again_when_that_is_wanted(
    jobs: Path, tmp_path: Path, rubric: Path, model: ScriptedModel
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)
    await the_one(job, judged_by(model, rubric=rubric, name="first"))
    as_first_scored(job, "first")

    first = await rescore(job, judged_by(model, rubric=rubric, ask_again=True))
    second = await rescore(job, judged_by(model, rubric=rubric, ask_again=True))

    assert [rollout.judge.asked for found in (first, second) for rollout in found.rollouts if rollout.judge] == [2, 2]
    assert len(model.calls) == 6
    assert first.name != second.name


async def test_a_judge_that_cannot_be_asked_is_an_error_and_its_answers_are_kept(
    jobs: Path, tmp_path: Path, rubric: Path
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)
    broken = {"when": {"anywhere": "It is short."}, "error": {"status": 400}}
    with ScriptedModel([says(1, "It says what it wants."), broken, says(5, "It is short.")]) as model:
        failed = await the_one(job, judged_by(model, rubric=rubric))
        again = await the_one(job, judged_by(model, rubric=rubric))

    assert (failed.outcome, failed.rewards) == ("failed", None)
    assert failed.error is not None and failed.error.type == "JudgeError"
    assert again.rewards == {"reward": 1.0, "honest": 1.0, "short": 1.0}
    assert again.judge is not None and (again.judge.asked, again.judge.recorded) == (1, 1)


async def test_a_rubric_object_scores_by_its_functions(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_rewards.py").write_text(MODULE + "\nimport benchflow\nloud = benchflow.Rubric([Loudness()])\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)

    one = await the_one(job, RescoringRequest(rubric="loud_rewards:loud"))

    assert one.rewards == {"reward": 0.11, "loudness": 0.11}
    sys.modules.pop("loud_rewards")


async def test_what_is_no_setting_of_a_judge_is_refused(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)

    with pytest.raises(ConfigError, match=r"judge\.concurrency"):
        await rescore(job, RescoringRequest(judge={"concurrency": 0}))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("nothing.toml", "no such rubric"),
        ("json:nothing", "cannot be imported"),
        ("json:loads", "is no rubric"),
    ],
)
async def test_what_is_no_rubric_is_refused(jobs: Path, tmp_path: Path, given: str, what: str) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)

    with pytest.raises(ConfigError, match=what):
        await rescore(job, RescoringRequest(rubric=given))


async def test_a_tasks_own_rubric_is_judged_over_what_was_kept(
    jobs: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    task = write_task(tmp_path / "tasks", "one", config='[verifier]\ntype = "llm-judge"\n')
    (task / "tests" / "rubric.toml").write_text(RUBRIC)
    judge = {"model": "openai/scripted", "base_url": model.openai_base_url}
    job = await store_job([task], jobs, {"one": Past({None: 0.625})}, judge=judge)
    [place] = job.glob("one__*")
    kept = place / "evidence" / "inputs" / "app"
    kept.mkdir(parents=True)
    (kept / "report.md").write_text("All is well.")

    one = await the_one(job, RescoringRequest())

    assert (one.rewards or {})["reward"] == 0.625
    assert one.verifier is None, "nothing had to be run for it"
    assert "All is well." in json.dumps(model.calls[0].body)


def as_first_scored(job: Path, name: str) -> None:
    """Let what judges answered in a rescoring be what they answered at first."""
    for place in job.glob("*__*"):
        shutil.copytree(place / "rescored" / name / "judge", place / "judge")
