"""Tampering on the command line: the column of a job's table, the findings of a rollout, and the option."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.command_line import Bench
from support.stored_jobs import store_job, write_task

from benchflow.cli.submit_request import make_job_config
from benchflow.contracts.config import JobConfig
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.job_retries import RetryConfig
from benchflow.contracts.reward import StepFinding
from benchflow.contracts.rollout_records import Failure, RolloutOutcome
from benchflow.errors import ConfigError
from benchflow.paths import JobPaths
from benchflow.results.summary import read_results

RESTORED = StepFinding(item="verify_tools", action="restored", path="/usr/bin/\x1b[31mdiff", weight="tampering")
NOTE = StepFinding(item="cleanup_conftests", action="removed", path="/app/conftest.py", step="first")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job `honest`, and one `tampered` whose first rollout has findings and has passed nevertheless."""
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    tasks = [write_task(tmp_path / "tasks", name) for name in ("attacked", "solved")]
    for name in ("honest", "tampered"):
        asyncio.run(store_job(tasks, tmp_path / "jobs", name=name, repeats=40, sandbox="noop"))
    result = read_results(JobPaths(tmp_path / "jobs" / "tampered"))[0]
    found = {"findings": [NOTE, RESTORED], "findings_left_out": 3, "n_tampering": 1}
    changed = result.model_copy(update=found)
    (Path(str(result.directory)) / "result.json").write_text(changed.model_dump_json())
    return tmp_path / "jobs"


def test_a_job_with_tampering_has_a_column_of_it_and_lists_it_although_it_passed(bench: Bench, jobs: Path) -> None:
    shown = bench("results", "tampered", "--jobs-dir", jobs).out
    [heading] = [line for line in shown.splitlines() if line.split()[:2] == ["task", "agent"] and "reward" in line]
    assert heading.split()[2:6] == ["reward", "status", "tampering", "time"]
    [row] = [line for line in shown.splitlines() if line.split()[:1] == ["attacked"]]
    assert row.split()[2:] == ["oracle", "1.0", "✓", "passed", "1", "0.0", "s"]
    assert "79 rollouts not listed" in shown


def test_a_job_without_tampering_has_no_such_column(bench: Bench, jobs: Path) -> None:
    shown = bench("results", "honest", "--jobs-dir", jobs, "--all").out
    [heading] = [line for line in shown.splitlines() if line.split()[:2] == ["task", "agent"] and "reward" in line]
    assert heading.split() == ["task", "agent", "reward", "status", "time", "error"]


def test_a_rollout_is_shown_with_its_findings_tampering_first(bench: Bench, jobs: Path) -> None:
    [result, *_] = read_results(JobPaths(jobs / "tampered"))
    shown = bench("job", "watch", f"tampered/{Path(str(result.directory)).name}", "--jobs-dir", jobs).out
    lines = [line for line in shown.splitlines() if line.startswith(("tampering", "note", "and "))]
    assert lines[0].startswith("tampering  restored /usr/bin/") and lines[0].endswith("diff · verify_tools")
    assert lines[1:] == [
        "note  removed /app/conftest.py · step first · cleanup_conftests",
        "and 3 other findings: see evidence/hardening.json",
    ]
    assert "\x1b" not in shown


def test_json_has_the_findings(bench: Bench, jobs: Path) -> None:
    rollouts = json.loads(bench("results", "tampered", "--jobs-dir", jobs, "--json").out)["rollouts"]
    row = rollouts[0]
    assert (row["n_tampering"], row["findings_left_out"]) == (1, 3)
    assert [(one["step"], one["weight"]) for one in row["findings"]] == [("first", "note"), (None, "tampering")]


# --- the option ----------------------------------------------------------------------------------------


def asked(text: str, tmp_path: Path, **options: str) -> JobConfig:
    file = tmp_path / "job.yaml"
    file.write_text(f"paths: [task]\n{text}")
    return make_job_config(paths=[], config=file, **options)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "keep"),
        ("on_tampering: zero\n", "zero"),
        # YAML's own null is the word, too.
        ("on_tampering: null\n", "null"),
        ("on_tampering: 'null'\n", "null"),
    ],
)
def test_a_jobs_file_says_what_becomes_of_tampered_rewards(text: str, expected: str, tmp_path: Path) -> None:
    assert asked(text, tmp_path).on_tampering == expected


def test_the_option_wins_over_the_file(tmp_path: Path) -> None:
    assert asked("on_tampering: zero\n", tmp_path, on_tampering="keep").on_tampering == "keep"


def test_another_word_is_refused_by_the_options_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        asked("", tmp_path, on_tampering="none")
    assert caught.value.key == "--on-tampering"


# --- after a reward was withheld -----------------------------------------------------------------------

WITHHELD = Failure(type="TamperingError", category="reward_tampering", message="withheld")


LATE = Failure(type="AgentTimeoutError", category="agent_timeout", message="late")


# The last is of a rollout that branched, none of whose children has a return.
@pytest.mark.parametrize(("error", "verifier_error"), [(None, WITHHELD), (LATE, WITHHELD), (WITHHELD, None)])
def test_a_rollout_whose_reward_was_withheld_is_not_run_again(
    error: Failure | None, verifier_error: Failure | None
) -> None:
    ended = RolloutOutcome(id="r", index=0, attempt=1, status="errored", error=error, verifier_error=verifier_error)
    assert not RetryConfig(categories=("agent_timeout", "reward_tampering")).allows(ended)


def test_nobody_can_ask_for_it_to_be_run_again() -> None:
    with pytest.raises(ValueError, match="'reward_tampering' is never run again"):
        JobConfig(paths=[Path("task")], retry=RetryConfig(categories=("sandbox", "reward_tampering")))


def test_withheld_rewards_stop_no_job() -> None:
    limit = ErrorLimit(errors=2)
    for index in range(3):
        ended = RolloutOutcome(id="r", index=index, attempt=1, status="errored", verifier_error=WITHHELD)
        limit = limit.plus(ended)
        assert limit.reached_by(ended) is None
