"""`bench rescore` as people and programs see it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.command_line import Bench
from support.reading import reading
from support.stored_jobs import Past, store_job, write_task

from benchflow.contracts.rollout_records import Failure

LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="it is gone")
REWRITTEN = "echo 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def job(module_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of three rollouts, one of which was never measured."""
    monkeypatch.chdir(tmp_path)
    tasks = [write_task(tmp_path / "tasks", name) for name in ("bad", "good", "lost")]
    past = {"bad": Past({None: 0.0}), "good": Past({None: 1.0}), "lost": Past({None: 1.0}, error=LOST)}
    return asyncio.run(store_job(tasks, tmp_path / "jobs", past))


def test_a_job_is_scored_again_by_its_name_and_by_its_directory(bench: Bench, job: Path) -> None:
    by_name, by_directory = bench("rescore", "past"), bench("rescore", job)

    for ran in (by_name, by_directory):
        assert ran.status == 0, ran.err
        assert "3 rollouts:  2 unchanged · 1 unmeasured · mean reward 0.5 → 0.5" in ran.out
        assert str(job / "rescored") in ran.out


def test_the_table_has_the_old_reward_and_the_new_one(bench: Bench, job: Path) -> None:
    lines = [line.split() for line in bench("rescore", "past").out.splitlines()]

    assert ["good", "oracle", "1.0", "1.0", "=", "unchanged", "stored"] in lines
    assert ["lost", "oracle", "–", "–", "–", "unmeasured", "sandbox_lost:", "it", "is", "gone"] in lines


def test_the_json_is_one_object_with_a_row_a_rollout(bench: Bench, job: Path) -> None:
    ran = bench("rescore", "past", "--json", "--name", "mine")

    assert ran.status == 0, ran.err
    told = ran.json
    assert (told["job"], told["name"], told["directory"]) == ("past", "mine", str(job))
    assert told["counts"] == {"unchanged": 2, "changed": 0, "failed": 0, "unmeasured": 1}
    assert (told["mean_before"], told["mean_after"]) == (0.5, 0.5)
    rows = {row["task_name"]: row for row in told["rollouts"]}
    assert rows["good"]["outcome"] == "unchanged"
    assert rows["good"]["before"] == rows["good"]["rewards"] == {"reward": 1.0}
    assert (rows["good"]["reward"], rows["good"]["verifier"], rows["good"]["task_from"]) == (1.0, "stored", "source")
    assert (rows["lost"]["rewards"], rows["lost"]["error"]["category"]) == (None, "sandbox_lost")
    written = json.loads((job / "rescored" / "mine.json").read_text())
    assert [row["task_name"] for row in written["rollouts"]] == ["bad", "good", "lost"]


def test_what_cannot_be_scored_ends_it_with_a_status_and_a_remedy(bench: Bench, job: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "changed", "good", test=REWRITTEN)

    ran = bench("rescore", "past", "--tasks", tmp_path / "changed", "--include", "good", "--json")

    assert ran.status == 1
    [row] = ran.json["rollouts"]
    assert (row["outcome"], row["error"]["category"]) == ("failed", "verifier")
    said = bench("rescore", "past", "--tasks", tmp_path / "changed", "--task-pattern", "good")
    assert said.status == 1
    assert "remedy: submit with --keep workspace" in said.err


@pytest.mark.local
def test_scores_that_changed_are_no_failure(bench: Bench, job: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "changed", "kept", test=REWRITTEN)
    task = write_task(tmp_path / "tasks", "kept")
    past = {"kept": Past({None: 0.25}, workspace=lambda value: {"answer": f"{value}\n"})}
    asyncio.run(store_job([task], tmp_path / "jobs", past, name="second"))

    ran = bench("rescore", "second", "--tasks", tmp_path / "changed")

    assert ran.status == 0, ran.err
    assert "1 rollout:  1 changed · mean reward 0.25 → 1.0" in ran.out
    assert "changed      0.25 → 1.0    kept #0 · oracle" in ran.out


@pytest.mark.local
def test_a_scoring_that_runs_is_shown_and_controlled_as_a_job(bench: Bench, job: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "changed", "kept", test="sleep 600\n")
    task = write_task(tmp_path / "tasks", "kept")
    past = {"kept": Past({None: 0.25}, workspace=lambda value: {"answer": f"{value}\n"})}
    asyncio.run(store_job([task], tmp_path / "jobs", past, name="second"))

    scoring = ["rescore", "second", "--tasks", "changed", "--trust-workspace", "--name", "mine", "--yes"]
    with reading(*scoring, terminal=True) as reader:
        reader.until("0/1")
        reader.until("verify")
        listed = {row["job"]: row["state"] for row in bench("job", "list", "--json").json["jobs"]}
        shown = bench("job", "show", "second/rescored/mine", "--json").json["job"]
        cancelled = bench("job", "cancel", "second/rescored/mine")
        assert reader.rest() == 1

    assert listed == {"second/rescored/mine": "running", "second": "finished", "past": "finished"}
    assert (shown["state"], shown["progress"]["open_count"]) == ("running", 1)
    assert cancelled.status == 0, cancelled.err
    assert "cancelled: the" in reader.text
    watched = bench("job", "watch", "second/rescored/mine", "--json").json
    assert watched["summary"]["cancelled"] == 1
    assert [row["job"] for row in bench("job", "list", "--json").json["jobs"]] == ["second", "past"]
    resumed = bench("job", "resume", "second/rescored/mine")
    assert resumed.status == 2 and "bench rescore … --name mine" in resumed.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rubric", "nothing.toml"], "there is no such rubric"),
        (["--tasks", "nowhere"], "does not exist"),
        (["--include", "other"], "the tasks are: bad, good, lost"),
        (["--name", "a/b"], "names a directory"),
        (["--name", ""], "names a directory"),
        (["--name", "same.json"], "has a meaning of its own"),
        (["--sandbox", "nothing"], "no sandbox provider 'nothing'"),
    ],
)
def test_a_request_that_is_wrong_is_refused_before_anything_is_scored(
    bench: Bench, job: Path, options: list[str], said: str
) -> None:
    ran = bench("rescore", "past", *options)

    assert ran.status == 2
    assert said in ran.err.replace("\n", " ")
    assert not (job / "rescored").exists()


def test_a_job_that_is_not_there_is_told_as_such(bench: Bench, state: Path, tmp_path: Path) -> None:
    ran = bench("rescore", "nothing", "--jobs-dir", tmp_path)

    assert ran.status == 2
    assert "not a job's directory" in ran.err


def test_damaged_rollouts_that_are_left_out_keep_no_other_from_being_scored(
    bench: Bench, job: Path, tmp_path: Path
) -> None:
    (bad,) = job.glob("bad__*")
    (good,) = job.glob("good__*")
    result = json.loads((bad / "result.json").read_text())
    (bad / "result.json").write_text(json.dumps(result | {"task_name": "../elsewhere"}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (good / "rescored").symlink_to(elsewhere)

    ran = bench("rescore", "past", "--include", "lost", "--json")

    assert ran.status == 0, ran.err
    assert [(row["task_name"], row["outcome"]) for row in ran.json["rollouts"]] == [("lost", "unmeasured")]
    refused = bench("rescore", "past", "--include", "good")
    assert refused.status == 1 and "link" in refused.err
    assert [*elsewhere.iterdir()] == []
    said = bench("rescore", "past")
    assert said.status == 1 and "there is no rollout of ../elsewhere" in said.err


def test_a_scoring_is_no_job_to_be_scored(bench: Bench, job: Path) -> None:
    assert bench("rescore", "past", "--name", "mine").status == 0

    ran = bench("rescore", job / "rescored" / "mine")

    assert ran.status == 2
    assert "this is a scoring of a job, and no job" in ran.err
    assert "bench rescore past" in ran.err
