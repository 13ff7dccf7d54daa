"""Jobs that score stored rollouts again: what their own results say, and how several of them share one name."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.in_process_worker import InProcessWorker
from support.stored_jobs import write_workspace

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.rescoring import Rescoring, RescoringRequest, rescore
from benchflow.testing.waiting import until


@pytest.fixture(autouse=True)
def drawn(worker: InProcessWorker) -> None:
    worker.provider.draws = True


async def test_a_rollout_whose_child_cannot_be_scored_has_no_reward_in_the_scoring_jobs_results(
    worker: InProcessWorker,
) -> None:
    # Its step before the branching is scored, and is not its reward.
    job = await worker.submit(worker.stepped(2, final=True), mode={"kind": "grpo", "n": 2, "at": 1})
    (result,) = await worker.results(job)
    assert result.steps[0].verify is not None
    child = Path(str(result.directory)) / "children" / "n1.0"
    (child / "steps" / "s1" / "verifier" / "reward.txt").unlink()
    scoring: list[Job] = []
    (record,) = (await rescore(job.directory.root, RescoringRequest(name="anew"), on_start=scoring.append)).rollouts
    assert (record.outcome, record.rewards) == ("failed", None)
    (own,) = scoring[0].results()
    assert (own.status, own.rewards) == ("errored", None)
    assert own.error is not None and record.error is not None and own.error.message == record.error.message
    # Nor has the state where its children began: the one that is left was not the mean.
    first, anew = (json.loads((root / "groups.jsonl").read_text()) for root in (job.directory.root, own_root(scoring)))
    assert (first["n"], first["error"], len(first["leaves"])) == (2, None, 2)
    assert (anew["n"], anew["mean"], anew["std"], anew["leaves"]) == (1, None, None, [])
    assert "without n1.0, which had a return" in anew["error"]
    tree = json.loads((own_root(scoring) / own.rollout_name / "tree.json").read_text())
    assert [node["value"] for node in tree["nodes"] if node["id"] == "n1"] == [None]


def own_root(scoring: list[Job]) -> Path:
    return scoring[0].directory.root


async def test_a_state_has_no_value_without_a_child_that_had_a_return_while_its_rollout_goes_on(
    worker: InProcessWorker,
) -> None:
    job = await worker.submit(worker.stepped(2, final=True), mode={"kind": "value", "n": 2, "depths": [0, 1]})
    (result,) = await worker.results(job)
    child = Path(str(result.directory)) / "children" / "n1.0"
    (child / "steps" / "s1" / "verifier" / "reward.txt").unlink()
    scoring: list[Job] = []
    (record,) = (await rescore(job.directory.root, RescoringRequest(name="anew"), on_start=scoring.append)).rollouts
    assert record.reward == result.reward and "a child has no return any more" in record.warnings[0]
    rows = [json.loads(line) for line in (own_root(scoring) / "values.jsonl").read_text().splitlines()]
    assert [(row["node"], row["n"], row["value"] is None) for row in rows] == [("n0", 2, False), ("n1", 1, True)]
    assert [row["error"] is None for row in rows] == [True, False]
    # The job's own results are repaired where it was cancelled after it had scored.
    (own,) = scoring[0].results()
    place = own_root(scoring) / own.rollout_name / "result.json"
    place.write_text(own.model_copy(update={"status": "cancelled"}).model_dump_json(exclude={"trajectory"}))
    await rescore(job.directory.root, RescoringRequest(name="anew"), on_start=scoring.append)
    assert len(scoring) == 2 and [one.status for one in scoring[1].results()] == [own.status]


async def test_a_scoring_of_some_rollouts_is_complete_with_them(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.task(), worker.task("other"))
    await job.wait()
    scoring: list[Job] = []
    found = await rescore(job.directory.root, RescoringRequest(name="anew", include=["other"]), on_start=scoring.append)
    assert found.counts.unchanged == 1
    assert (scoring[0].summarize().total, scoring[0].summarize().not_run) == (1, 0)
    await rescore(job.directory.root, RescoringRequest(name="anew"), on_start=scoring.append)
    assert (scoring[1].summarize().total, scoring[1].summarize().not_run) == (2, 0)


ROLLS_BACK = """
import sys
from pathlib import Path
from benchflow import VerifyResult

class RollsBack:
    async def score(self, node):
        if not (Path({place!r}) / "rollbacks").exists():
            sys.modules["test_scorings"].roll_back(Path({place!r}))
        return VerifyResult(reward=0.25)

quality = RollsBack()
"""
"""A rubric that finds its rollout rolled back when it has scored it."""


def roll_back(place: Path) -> None:
    """Change a stored rollout as a rollback after its end does: it has another result, and its new scores are gone."""
    result = RolloutResult.model_validate_json((place / "result.json").read_bytes())
    (place / "rollbacks" / "1").mkdir(parents=True)
    if (place / "rescored").exists():
        (place / "rescored").rename(place / "rollbacks" / "1" / "rescored")
    update = {"finished_at": result.finished_at + timedelta(minutes=1), "rewards": {"reward": 0.125}}
    (place / "result.json").write_text(result.model_copy(update=update).model_dump_json())


async def test_a_rollout_that_is_rolled_back_while_it_is_scored_has_no_score(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = await worker.results(job := await worker.submit(worker.task()))
    place, rubrics = Path(str(result.directory)), worker.root / "rubrics"
    rubrics.mkdir()
    (rubrics / "rolls_back.py").write_text(ROLLS_BACK.format(place=str(place)))
    monkeypatch.chdir(rubrics)
    request = RescoringRequest(name="anew", rubric="rolls_back:quality")

    (record,) = (await rescore(job.directory.root, request)).rollouts
    assert record.outcome == "failed" and record.error is not None
    assert record.error.message == "the rollout was rolled back while it was scored"
    assert not (place / "rescored" / "anew" / "result.json").exists()

    (record,) = (await rescore(job.directory.root, request)).rollouts
    assert (record.before, record.rewards) == ({"reward": 0.125}, {"reward": 0.25})


async def test_a_score_of_a_result_from_before_a_rollback_does_not_count(worker: InProcessWorker) -> None:
    (result,) = await worker.results(job := await worker.submit(worker.task()))
    (first,) = (await rescore(job.directory.root, RescoringRequest(name="anew"))).rollouts
    assert first.before == result.rewards
    place = Path(str(result.directory))
    roll_back(place)
    # As a scoring leaves it that has looked at the result just before.
    (place / "rollbacks" / "1" / "rescored").rename(place / "rescored")
    (second,) = (await rescore(job.directory.root, RescoringRequest(name="anew"))).rollouts
    assert second.before == {"reward": 0.125}

    # Records of earlier versions, which name no result, count as they did.
    file = place / "rescored" / "anew" / "result.json"
    file.write_text(second.model_copy(update={"stored_finished_at": None}).model_dump_json())
    (third,) = (await rescore(job.directory.root, RescoringRequest(name="anew"))).rollouts
    assert third.finished_at == second.finished_at


WAITS = """
import sys
from benchflow import VerifyResult

class Waits:
    async def score(self, node):
        await sys.modules["test_scorings"].let_go.wait()
        return VerifyResult(reward=0.25)

quality = Waits()
"""

let_go = asyncio.Event()


@pytest.fixture
def waiting(worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch) -> RescoringRequest:
    """Return a request whose rubric waits until `let_go` is set."""
    monkeypatch.setattr(sys.modules[__name__], "let_go", asyncio.Event())
    rubrics = worker.root / "rubrics"
    rubrics.mkdir()
    (rubrics / "waits.py").write_text(WAITS)
    monkeypatch.chdir(rubrics)
    return RescoringRequest(name="anew", rubric="waits:quality")


Scorings = tuple[Awaitable[list[Rescoring]], list[Job]]


async def attached(worker: InProcessWorker, waiting: RescoringRequest) -> Scorings:
    """Start a scoring of one of two rollouts, and one of both while it runs. Return them, and the latter's jobs."""
    job = await worker.submit(worker.task("first"), worker.task("second"))
    await job.wait()
    root, first = job.directory.root, replace(waiting, include=["first"])
    others: list[Job] = []
    jobs: list[Job] = []
    scorings = [asyncio.create_task(rescore(root, first, on_start=others.append))]
    await until(lambda: bool(others))
    scorings.append(asyncio.create_task(rescore(root, waiting, on_start=jobs.append)))
    await until(lambda: bool(jobs))
    assert jobs[0].attached
    return asyncio.gather(*scorings), jobs


async def test_a_scoring_that_attaches_to_one_of_fewer_rollouts_scores_the_others_too(
    worker: InProcessWorker, waiting: RescoringRequest
) -> None:
    scorings, jobs = await attached(worker, waiting)
    let_go.set()
    _, found = await scorings
    assert [(one.outcome, one.rewards) for one in found.rollouts] == [("changed", {"reward": 0.25})] * 2
    assert [each.attached for each in jobs] == [True, False]


async def test_a_scoring_that_attaches_to_one_that_is_cancelled_starts_nothing(
    worker: InProcessWorker, waiting: RescoringRequest
) -> None:
    scorings, jobs = await attached(worker, waiting)
    await jobs[0].cancel()
    _, found = await scorings
    assert [one.outcome for one in found.rollouts] == ["failed"] * 2
    assert len(jobs) == 1


FAILS = """
from benchflow import VerifyResult

class Fails:
    async def score(self, node):
        await node.rollout.workbench.run("look", ["true"])
        raise {error}

quality = Fails()
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError('it is no number')", "ValueError: it is no number"),
        ("SystemExit(3)", "the rubric raised SystemExit: 3"),
    ],
    ids=["error", "exit"],
)
async def test_a_scorer_that_fails_leaves_no_sandbox_and_no_slot(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch, error: str, message: str
) -> None:
    (result,) = await worker.results(job := await worker.submit(worker.task()))
    write_workspace(RolloutPaths(Path(str(result.directory))).workspace(None), {})
    (worker.root / "fails.py").write_text(FAILS.format(error=error))
    monkeypatch.chdir(worker.root)
    (record,) = (await rescore(job.directory.root, RescoringRequest(name="anew", rubric="fails:quality"))).rollouts
    assert record.error is not None and record.error.message == message
    assert (worker.provider.open, worker.context.slots.taken()) == (set(), [])


async def test_a_scoring_has_time_for_a_whole_tree_whatever_the_deadline_of_its_agents_was(
    worker: InProcessWorker,
) -> None:
    mode = {"kind": "grpo", "n": 2, "at": 1}
    job = await worker.submit(worker.stepped(2, final=True), mode=mode, deadline_sec=600.0)
    await job.wait()
    scoring: list[Job] = []
    await rescore(job.directory.root, RescoringRequest(name="anew"), on_start=scoring.append)
    assert job.spec.run.deadline_sec == 600.0 and job.spec.run.branch is not None
    six_hours, n_rollouts = 6 * 3600, 1 + job.spec.run.branch.max_children
    assert n_rollouts >= 3
    assert scoring[0].spec.run.deadline_sec == six_hours * n_rollouts


FAILS_ONCE = """
import sys
from benchflow import VerifyResult
from benchflow.errors import SandboxBusyError

class FailsOnce:
    async def score(self, node):
        if sys.modules["test_scorings"].let_go.is_set():
            return VerifyResult(reward=0.25)
        sys.modules["test_scorings"].let_go.set()
        raise SandboxBusyError("it printed streng-geheim")

quality = FailsOnce()
"""


async def test_an_error_after_which_a_scoring_is_tried_again_has_no_secrets(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch, waiting: RescoringRequest
) -> None:
    monkeypatch.setenv("TAKEN_HERE", "streng-geheim")
    task = worker.task(config="[verifier]\nenv = { A = '${TAKEN_HERE}' }")
    job = await worker.submit(task)
    await job.wait()
    Path("fails_once.py").write_text(FAILS_ONCE)
    worker.options(retry_initial_sec=0.01)
    scoring: list[Job] = []
    request = replace(waiting, rubric="fails_once:quality")
    (record,) = (await rescore(job.directory.root, request, on_start=scoring.append)).rollouts
    assert record.rewards == {"reward": 0.25}
    handle = worker.context.client.get_workflow_handle(scoring[0].spec.rollout_id(scoring[0].id, 0))
    failures = [
        event.activity_task_started_event_attributes.last_failure.message
        async for event in handle.fetch_history_events()
        if event.activity_task_started_event_attributes.HasField("last_failure")
    ]
    assert len(failures) == 1 and "it printed" in failures[0] and "streng-geheim" not in failures[0]


RUNS_FIRST = """
class RunsFirst:
    async def score(self, node):
        await node.rollout.workbench.run("look", ["true"])
        return await node.rollout.workbench.tests()

quality = RunsFirst()
"""


async def test_a_scorer_that_runs_a_command_before_a_changed_verifier_needs_no_second_slot(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = worker.task()
    (result,) = await worker.results(job := await worker.submit(task))
    place = RolloutPaths(Path(str(result.directory)))
    write_workspace(place.workspace(None), {})
    worker.provider.draws = False
    (place.verifier / "reward.txt").write_text("1.0\n")
    changed = Path(shutil.copytree(task.parent, worker.root / "changed"))
    (changed / task.name / "tests" / "test.sh").write_text("#!/bin/sh\n# changed\n")
    (worker.root / "runs_first.py").write_text(RUNS_FIRST)
    monkeypatch.chdir(worker.root)
    worker.options(retry_initial_sec=0.01)
    monkeypatch.setattr(worker.context.slots, "limit", 1)
    monkeypatch.setattr(worker.context.slots, "wait_sec", 0.1)
    request = RescoringRequest(name="anew", rubric="runs_first:quality", tasks=changed)
    (record,) = (await rescore(job.directory.root, request)).rollouts
    assert (record.error, record.rewards) == (None, {"reward": 1.0})
    assert worker.context.slots.taken() == []
