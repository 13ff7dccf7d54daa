"""`rescore` on jobs that lie on disk: the same scoring says the same, another changes what it should, and no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.stored_jobs import SCORE_BY_ANSWER, Past, answer, files_below, store_job, write_task

from benchflow.contracts.rollout_records import Failure
from benchflow.errors import ConfigError, JobConflictError, JobNotFoundError
from benchflow.paths import JobPaths, StatePaths
from benchflow.planes.reward.hardening import HardeningBaseline, store_baseline
from benchflow.rescoring import RescoredRollout, Rescoring, RescoringRequest, rescore
from benchflow.results.summary import read_spec

KEPT = Past({None: 0.5}, workspace=answer)
LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="it is gone")

HALF = 'read reward < /app/answer; awk "BEGIN { print $reward / 2 }" > /logs/verifier/reward.txt\n'
"""A verifier that gives half of what the agent has written."""


def by_task(found: Rescoring) -> dict[str, RescoredRollout]:
    return {rollout.task_name: rollout for rollout in found.rollouts}


@pytest.mark.local
async def test_the_same_scoring_says_exactly_the_same_and_touches_nothing(jobs: Path, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    past = {
        f"{name}/{repeat}": Past({None: repeat / 3}, workspace=answer) for name in ("one", "two") for repeat in (0, 1)
    }
    job = await store_job(tasks, jobs, past, repeats=2)
    before = files_below(job)

    found = await rescore(job)

    assert [rollout.rewards for rollout in found.rollouts] == [{"reward": 0.0}, {"reward": 1 / 3}] * 2
    assert {(rollout.outcome, rollout.verifier, rollout.task_from) for rollout in found.rollouts} == {
        ("unchanged", "ran", "source")
    }
    assert files_below(job) == before
    place = job / found.rollouts[1].rollout_name / "rescored" / found.name
    assert (place / "verifier" / "reward.txt").read_text().split() == [str(1 / 3)]
    assert '"value": 0.3333333333333333' in (place / "rewards.jsonl").read_text()


@pytest.mark.local
async def test_what_a_verifier_meets_when_it_is_run_again_is_in_its_result(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": KEPT})
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "tasks", changed)
    write_task(changed, "one", test=f"{HALF}echo '# more' >>/tests/test.sh\nexit\n")

    [one] = (await rescore(job, RescoringRequest(tasks=changed))).rollouts

    verify = one.steps[0].verify
    assert verify is not None and verify.reward == 0.25
    [finding] = verify.metadata["hardening"]["findings"]
    assert (finding["path"], finding["detail"]) == ("/tests/test.sh", "was changed while the verifier ran")


@pytest.mark.local
async def test_several_keys_are_scored_again_per_key(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": KEPT})
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "tasks", changed)
    # It starts where it did at first: in the workspace.
    write_task(changed, "one", test='printf \'{"a": %s, "b": 1}\' "$(cat answer)" > /logs/verifier/reward.json\n')

    found = await rescore(job, RescoringRequest(tasks=changed))

    [one] = found.rollouts
    assert (one.error, one.outcome, one.rewards, one.reward) == (None, "changed", {"a": 0.5, "b": 1.0}, None)
    assert (found.mean_before, found.mean_after) == (None, None)


async def test_what_a_verifier_wrote_is_read_again_where_no_workspace_was_kept(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": Past({None: 0.25})})

    found = await rescore(job)

    assert found.rollouts[0].rewards == {"reward": 0.25}
    assert (found.rollouts[0].outcome, found.rollouts[0].verifier) == ("unchanged", "stored")


@pytest.mark.local
async def test_a_changed_verifier_changes_the_scores_of_its_own_task_alone(jobs: Path, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    job = await store_job(tasks, jobs, {"one": KEPT, "two": KEPT})
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "tasks", changed)
    write_task(changed, "two", test=HALF)

    found = by_task(await rescore(job, RescoringRequest(tasks=changed)))

    assert (found["one"].outcome, found["one"].rewards) == ("unchanged", {"reward": 0.5})
    assert (found["two"].outcome, found["two"].rewards) == ("changed", {"reward": 0.25})
    assert (found["two"].changes["reward"].before, found["two"].changes["reward"].after) == (0.5, 0.25)
    assert found["two"].task_digest != found["two"].recorded_digest
    assert found["one"].task_digest == found["one"].recorded_digest


async def test_a_changed_verifier_has_no_score_without_the_workspace(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": Past({None: 0.25})})
    changed = tmp_path / "changed"
    write_task(changed, "one", test=HALF)

    one = by_task(await rescore(job, RescoringRequest(tasks=changed)))["one"]

    assert (one.outcome, one.rewards, one.before) == ("failed", None, {"reward": 0.25})
    assert one.error is not None and one.error.remedy is not None
    assert "--keep workspace" in one.error.remedy


@pytest.mark.local
async def test_a_reward_function_that_a_task_has_now_adds_its_metrics_alone(jobs: Path, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    job = await store_job(tasks, jobs, {"one": KEPT, "two": KEPT})
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "tasks", changed)
    write_task(changed, "two", config='[[reward.funcs]]\ntype = "string-match"\nexpected = "I want 0.5."\n')

    found = by_task(await rescore(job, RescoringRequest(tasks=changed)))

    assert found["one"].outcome == "unchanged"
    assert found["two"].rewards == {"reward": 0.5, "output": 0.75, "output.string-match": 1.0}
    assert set(found["two"].changes) == {"output", "output.string-match"}


READS_OUTSIDE = "cat /srv/reward > /logs/verifier/reward.txt 2>/dev/null || echo 0 > /logs/verifier/reward.txt\n"
"""A verifier that reads what no workspace holds."""


@pytest.mark.local
async def test_a_verifier_that_reads_more_than_the_workspace_is_not_believed_when_it_is_run_again(
    jobs: Path, tmp_path: Path
) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one", test=READS_OUTSIDE)], jobs, {"one": KEPT})
    changed = tmp_path / "changed"
    write_task(changed, "one", test=HALF)

    same = by_task(await rescore(job))["one"]
    other = by_task(await rescore(job, RescoringRequest(tasks=changed)))["one"]
    trusted = by_task(await rescore(job, RescoringRequest(tasks=changed, trust_workspace=True)))["one"]

    assert (same.outcome, same.verifier, same.rewards) == ("unchanged", "stored", {"reward": 0.5})
    assert "what the verifier wrote at first counts" in same.warnings[-1]
    assert (other.outcome, other.rewards) == ("failed", None)
    assert other.error is not None and "gave 0.5, and gives 0.0" in other.error.message
    assert (trusted.outcome, trusted.rewards) == ("changed", {"reward": 0.25})


PINNED = 'if [ -n "$PYTEST_ADDOPTS" ] && [ "$HOME" = {home} ]; then reward=1; else reward=0.5; fi\n'
"""A verifier that says whether its environment was pinned."""


@pytest.mark.local
@pytest.mark.parametrize(
    # A clean room is a sandbox of its own: what it is itself is what it is pinned by.
    ("config", "home"),
    [("", "/srv"), ('[verifier]\nenvironment_mode = "separate"\n', "/root")],
    ids=["shared", "separate"],
)
async def test_a_verifier_is_pinned_as_it_was_and_not_where_nothing_was_known_then(
    jobs: Path, tmp_path: Path, config: str, home: str
) -> None:
    test = PINNED.format(home=home) + 'echo "$reward" > /logs/verifier/reward.txt\n'
    tasks = [write_task(tmp_path / "tasks", name, test=test, config=config) for name in ("known", "older")]
    past = {name: Past({None: value}, workspace=answer) for name, value in (("known", 1.0), ("older", 0.5))}
    job = await store_job(tasks, jobs, past)
    [known] = job.glob("known__*")
    baseline = HardeningBaseline(path="/usr/bin:/bin", directories=["/usr/bin", "/bin"], home="/srv")
    store_baseline(baseline, known / "evidence")

    found = by_task(await rescore(job))

    assert {name: (one.rewards, one.steps[0].verifier) for name, one in found.items()} == {
        "known": ({"reward": 1.0}, "ran"),
        "older": ({"reward": 0.5}, "ran"),
    }
    assert found["known"].warnings == []
    [warning] = found["older"].warnings
    assert "not pinned, as it was not then" in warning


async def test_a_task_that_was_changed_where_it_lay_is_taken_from_the_store(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    job = await store_job([task], jobs, {"one": Past({None: 0.25})})
    write_task(tmp_path / "tasks", "one", test=HALF)

    one = by_task(await rescore(job))["one"]

    assert (one.outcome, one.task_from, one.task_digest) == ("unchanged", "store", one.recorded_digest)


async def test_a_task_that_is_nowhere_is_an_error_that_says_what_to_give(jobs: Path, tmp_path: Path) -> None:
    # Of its own content, which no other task has brought into the store.
    gone = write_task(tmp_path / "tasks", "gone", test=f"# {tmp_path}\n{SCORE_BY_ANSWER}")
    tasks = [gone, write_task(tmp_path / "tasks", "here")]
    job = await store_job(tasks, jobs)
    shutil.rmtree(tasks[0])
    state, sha256 = StatePaths.default(), read_spec(JobPaths(job)).tasks[0].pack.sha256
    for blob in [*state.store.rglob(f"*{sha256[2:]}*")]:
        blob.unlink()

    found = by_task(await rescore(job))

    assert found["here"].outcome == "unchanged"
    error = found["gone"].error
    assert error is not None and error.remedy is not None
    assert (found["gone"].outcome, error.type, "store" in error.message) == ("failed", "TaskError", True)
    assert "--tasks DIR" in error.remedy


async def test_a_rollout_that_was_never_measured_stays_so(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    job = await store_job([task], jobs, {"one": Past({None: 1.0}, error=LOST)})

    found = await rescore(job)

    assert (found.rollouts[0].outcome, found.rollouts[0].rewards) == ("unmeasured", None)
    assert found.rollouts[0].error == LOST
    assert found.counts.failed == 0 and found.is_complete


async def test_what_is_complete_is_not_done_again_and_what_failed_is(jobs: Path, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    job = await store_job(tasks, jobs)
    spoilt = next(job.glob("two__*")) / "verifier" / "reward.txt"
    spoilt.unlink()
    first = await rescore(job, RescoringRequest(name="again"))
    spoilt.write_text("1\n")

    second = await rescore(job, RescoringRequest(name="again"))

    assert by_task(first)["two"].outcome == "failed"
    assert by_task(second)["two"].outcome == "unchanged"
    assert by_task(first)["one"] == by_task(second)["one"]


async def test_the_default_name_says_what_scores(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    job = await store_job([task], jobs)
    changed = tmp_path / "changed"
    write_task(changed, "one", test=HALF)

    same, again, other = await rescore(job), await rescore(job), await rescore(job, RescoringRequest(tasks=changed))

    assert same.name == again.name != other.name
    assert (job / "rescored" / f"{same.name}.json").is_file() and (job / "rescored" / f"{other.name}.json").is_file()


async def test_a_name_belongs_to_one_scoring(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)
    changed = tmp_path / "changed"
    write_task(changed, "one", test=HALF)
    await rescore(job, RescoringRequest(name="mine"))

    with pytest.raises(JobConflictError, match="another scoring"):
        await rescore(job, RescoringRequest(name="mine", tasks=changed))


@pytest.mark.parametrize("name", ["result", "../up"])
async def test_a_name_that_would_be_taken_for_something_else_is_refused(jobs: Path, tmp_path: Path, name: str) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs)

    with pytest.raises(ConfigError, match="--name"):
        await rescore(job, RescoringRequest(name=name))


async def test_patterns_choose_rollouts_and_the_summary_keeps_the_others(jobs: Path, tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    job = await store_job(tasks, jobs)
    await rescore(job, RescoringRequest(include=["o*"], name="mine"))

    second = await rescore(job, RescoringRequest(include=["t*"], name="mine"))

    assert list(by_task(second)) == ["two"]
    written = Rescoring.model_validate_json((job / "rescored" / "mine.json").read_bytes())
    assert list(by_task(written)) == ["one", "two"]
    with pytest.raises(ConfigError, match="no rollout"):
        await rescore(job, RescoringRequest(include=["three"]))


async def test_a_directory_that_is_no_job_is_said_to_be_none(tmp_path: Path, module_jobs: Path) -> None:
    with pytest.raises(JobNotFoundError):
        await rescore(tmp_path)


# --- steps ---------------------------------------------------------------------------------------------

STEPS = ["first", "second"]


async def test_the_steps_of_a_task_are_scored_one_by_one_and_averaged(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "long", steps=STEPS)
    job = await store_job([task], jobs, {"long": Past({"first": 1.0, "second": 0.5})})

    long = by_task(await rescore(job))["long"]

    assert (long.outcome, long.rewards) == ("unchanged", {"reward": 0.75})
    assert [(step.name, step.verify.reward if step.verify else None) for step in long.steps] == [
        ("first", 1.0),
        ("second", 0.5),
    ]


@pytest.mark.local
async def test_after_a_step_that_is_not_good_enough_now_none_counts(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "long", steps=STEPS)
    job = await store_job([task], jobs, {"long": Past({"first": 0.8, "second": 1.0}, workspace=answer)})
    changed = tmp_path / "changed"
    strict = write_task(changed, "long", test=HALF, steps=STEPS)
    text = (strict / "task.toml").read_text()
    (strict / "task.toml").write_text(text.replace('name = "first"', 'name = "first"\nmin_reward = 0.5'))

    long = by_task(await rescore(job, RescoringRequest(tasks=changed)))["long"]

    assert long.rewards == {"reward": 0.4}
    assert [step.name for step in long.steps] == ["first"]
    assert "the steps after it do not count" in long.warnings[-1]
