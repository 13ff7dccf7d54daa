"""A job from submit to results, on the embedded stack with a sandbox that does nothing: what is printed, and kept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Bench, Ran
from support.made_once import made_once

from benchflow.tasks import init_task


@made_once()
def first(root: Path) -> tuple[Path, Ran]:
    """The directory in which `bench submit` was run as a process of its own, and what it printed."""
    for name in ("one", "three", "two"):
        init_task(root / "set", name)
    command = [sys.executable, "-m", "benchflow.cli", "submit", "set", "-k", "2", "--sandbox", "noop"]
    ran = subprocess.run([*command, "--job-name", "first"], cwd=root, capture_output=True, text=True, check=False)
    return root, Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def place(first: tuple[Path, Ran], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, which is the current one."""
    monkeypatch.chdir(first[0])
    return first[0]


@pytest.fixture
def printed(first: tuple[Path, Ran]) -> Ran:
    return first[1]


def test_submit_ends_with_a_table_the_results_and_how_to_stop_the_stack(printed: Ran, place: Path) -> None:
    assert printed.status == 0, printed.err
    for name in ("one", "two", "three"):
        assert re.search(rf"^ ?{name} #0 +oracle +1\.0 +✓ passed", printed.out, re.MULTILINE)
        assert re.search(rf"^passed +1\.0 +{name} #[01] · oracle", printed.out, re.MULTILINE)
    assert "6 rollouts:  6 passed · mean reward 1.0" in printed.out
    assert f"results  {place / 'jobs/first'}" in printed.out
    ui = r"^Web UI +http://127\.0\.0\.1:\d+/namespaces/benchflow/workflows/job%2Ffirst-\w+\nThe Web UI asks for a token"
    assert len(re.findall(ui, printed.out, re.MULTILINE)) == 2
    assert "bench stack status" in printed.out and "token=" not in printed.out + printed.err
    assert "bench stack stop" in printed.out


def test_a_second_submit_runs_nothing_and_json_is_one_object(bench: Bench, place: Path) -> None:
    found = bench("submit", "set", "-k", "2", "--sandbox", "noop", "--job-name", "first", "--json").json
    assert sorted(found) == ["job", "rollouts", "summary"]
    assert (found["job"]["name"], found["job"]["state"], found["job"]["started"]) == ("first", "finished", 0)
    summary = found["summary"]
    assert {key: summary[key] for key in ("total", "passed", "failed", "errored", "mean_reward")} == {
        "total": 6,
        "passed": 6,
        "failed": 0,
        "errored": 0,
        "mean_reward": 1.0,
    }
    assert [(row["task_name"], row["repeat"], row["reward"]) for row in found["rollouts"]][:2] == [
        ("one", 0, 1.0),
        ("one", 1, 1.0),
    ]


def test_a_job_of_another_specification_is_refused_with_the_differences(bench: Bench, place: Path) -> None:
    ran = bench("submit", "set", "--sandbox", "noop", "--job-name", "first", "--agent", "nop", "-k", "1", "--json")
    assert ran.status == 2
    error = ran.json["error"]
    assert error["type"] == "JobConflictError"
    assert "repeats: 2 → 1" in error["message"]
    assert "oracle" in error["message"] and "nop" in error["message"]


def test_jobs_are_listed_and_shown(bench: Bench, place: Path) -> None:
    assert bench("job", "list", "--jobs-dir", "nowhere").out == "There is no job in nowhere.\n"
    assert re.search(r"^ ?first +6/6 +6 +0 +1\.0 n=6 +finished", bench("job", "list").out, re.MULTILINE)
    (listed,) = bench("job", "list", "--json").json["jobs"]
    assert (listed["job"], listed["state"]) == ("first", "finished")
    shown = bench("job", "show", "first")
    assert "first  finished" in shown.out and "✓ passed" in shown.out
    assert bench("job", "show", "first", "--json").json["job"]["spec"]["tasks"][0]["name"] == "one"


def test_results_are_found_by_name_and_by_directory(bench: Bench, place: Path) -> None:
    ran = bench("results", "first")
    assert ran.status == 0
    assert re.search(r"^ ?oracle +6 +0 +0 +1\.0 +6 +0\.439 … 1\.0 +Wilson by task", ran.out, re.MULTILINE)
    assert re.search(r"pass@1 +pass@2 +tasks", ran.out)
    assert re.search(r"^ ?oracle +1\.0 +1\.0 +3 *$", ran.out, re.MULTILINE)
    assert "provision" in ran.out
    assert bench("results", Path("jobs/first"), "--json").json == bench("results", "first", "--json").json


def test_a_job_that_is_over_is_watched_to_its_end_and_cannot_be_controlled(bench: Bench, place: Path) -> None:
    watched = bench("job", "watch", "first", "--json")
    assert (watched.status, watched.json["summary"]["passed"]) == (0, 6)
    ran = bench("job", "concurrency", "first", "3")
    assert ran.status == 2
    assert "job 'first' does not run" in ran.err


@pytest.mark.parametrize(
    "command", ["job show", "job watch", "job cancel", "job pause", "job resume", "job fetch", "results"]
)
def test_a_job_that_is_not_there_is_a_wrong_request(bench: Bench, engine: Path, command: str) -> None:
    ran = bench(*command.split(), "nobody")
    assert ran.status == 2
    assert "this is not a job's directory" in ran.err


# --- the stack ---------------------------------------------------------------------------------------------


def test_the_status_of_the_stack_names_server_worker_and_web_ui(bench: Bench, module_jobs: Path) -> None:
    assert bench("stack", "start").status == 0
    status = bench("stack", "status", "--json").json
    assert status["state"] == "running"
    assert status["address"].startswith("127.0.0.1:")
    assert status["ui"].startswith("http://")
    assert status["open_workflows"] >= 0
    assert f"pid {status['server_pid']}" in bench("stack", "status").out


def test_nothing_is_started_to_say_that_nothing_runs(bench: Bench, state: Path) -> None:
    assert bench("stack", "status", "--json").json["state"] == "stopped"
    assert bench("stack", "stop").out == "The local stack did not run.\n"
    assert not state.exists()


def test_a_worker_needs_a_cluster(bench: Bench) -> None:
    ran = bench("worker")
    assert ran.status == 1
    assert "TEMPORAL_ADDRESS" in ran.err
