"""Jobs from submit to results, on the real engine with a sandbox that does nothing."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Bench

from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("engine")

BENCH = [sys.executable, "-m", "benchflow.cli"]


def test_submit_ends_with_a_table_the_results_and_how_to_stop_the_stack(bench: Bench, tasks: Path) -> None:
    ran = bench("submit", tasks, "--sandbox", "noop", "--job-name", "first")
    assert ran.status == 0, ran.err
    for name in ("one", "two", "three"):
        assert re.search(rf"^ ?{name} +oracle +1\.0 +✓ passed", ran.out, re.MULTILINE)
        assert re.search(rf"^passed +1\.0 +{name} · oracle", ran.out, re.MULTILINE)
    assert "3 rollouts:  3 passed · mean reward 1.0" in ran.out
    assert f"results  {Path('jobs/first').absolute()}" in ran.out
    assert re.search(r"^Web UI +http://127\.0\.0\.1:\d+/namespaces/benchflow/workflows/job%2Ffirst-", ran.out, re.M)
    assert "bench stack stop" in ran.out


def test_json_is_one_object_with_job_summary_and_rollouts(bench: Bench, tasks: Path) -> None:
    found = bench("submit", tasks, "-k", "2", "--sandbox", "noop", "--job-name", "j", "--json").json
    assert sorted(found) == ["job", "rollouts", "summary"]
    assert found["job"]["name"] == "j"
    assert found["job"]["state"] == "finished"
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


def test_a_second_submit_of_the_same_job_runs_nothing(bench: Bench, task: Path) -> None:
    options = [task, "--sandbox", "noop", "--job-name", "twice", "--json"]
    first, second = bench("submit", *options).json, bench("submit", *options).json
    assert (first["job"]["started"], second["job"]["started"]) == (1, 0)
    assert first["rollouts"] == second["rollouts"]


def test_a_job_of_another_specification_is_refused_with_the_differences(bench: Bench, task: Path) -> None:
    assert bench("submit", task, "--sandbox", "noop", "--job-name", "mine").status == 0
    ran = bench("submit", task, "--sandbox", "noop", "--job-name", "mine", "--agent", "nop", "-k", "2", "--json")
    assert ran.status == 2
    error = ran.json["error"]
    assert error["type"] == "JobConflictError"
    assert "repeats: 1 → 2" in error["message"]
    assert "oracle" in error["message"] and "nop" in error["message"]


def test_a_detached_job_is_found_again(bench: Bench, tasks: Path) -> None:
    started = bench("submit", tasks, "--sandbox", "noop", "--job-name", "away", "--detach", "--json")
    assert started.status == 0
    assert (started.json["job"]["state"], started.json["rollouts"]) == ("running", [])
    assert "bench job watch away" in started.err
    watched = bench("job", "watch", "away", "--json")
    assert watched.status == 0
    assert watched.json["summary"]["passed"] == 3


def test_jobs_are_listed_and_shown(bench: Bench, task: Path) -> None:
    assert bench("job", "list").out == "There is no job in jobs.\n"
    bench("submit", task, "--sandbox", "noop", "--job-name", "shown")
    assert re.search(r"^ ?shown +1/1 +1 +0 +1\.0 +finished", bench("job", "list").out, re.MULTILINE)
    (listed,) = bench("job", "list", "--json").json["jobs"]
    assert (listed["job"], listed["state"]) == ("shown", "finished")
    shown = bench("job", "show", "shown")
    assert "shown  finished" in shown.out and "✓ passed" in shown.out
    assert bench("job", "show", "shown", "--json").json["job"]["spec"]["tasks"][0]["name"] == "greet"


def test_results_are_found_by_name_and_by_directory(bench: Bench, tasks: Path) -> None:
    bench("submit", tasks, "-k", "2", "--sandbox", "noop", "--job-name", "r")
    ran = bench("results", "r")
    assert ran.status == 0
    assert re.search(r"^ ?oracle +6 +6 +6 +1\.0 +1\.000 … 1\.000", ran.out, re.MULTILINE)
    assert "k=1 1.000   k=2 1.000" in ran.out
    assert "provision" in ran.out
    assert bench("results", Path("jobs/r"), "--json").json == bench("results", "r", "--json").json


@pytest.mark.parametrize(
    "command", ["job show", "job watch", "job cancel", "job pause", "job resume", "job fetch", "results"]
)
def test_a_job_that_is_not_there_is_a_wrong_request(bench: Bench, command: str) -> None:
    ran = bench(*command.split(), "nobody")
    assert ran.status == 2
    assert "this is not a job's directory" in ran.err


def test_a_job_that_is_over_cannot_be_controlled(bench: Bench, task: Path) -> None:
    bench("submit", task, "--sandbox", "noop", "--job-name", "over")
    ran = bench("job", "concurrency", "over", "3")
    assert ran.status == 2
    assert "job 'over' does not run" in ran.err


def test_a_paused_job_starts_nothing_until_it_goes_on(bench: Bench, task: Path) -> None:
    bench("submit", task, "-k", "24", "-n", "1", "--sandbox", "noop", "--job-name", "slow", "--detach")
    assert bench("job", "pause", "slow").status == 0
    shown = bench("job", "show", "slow", "--json").json["job"]
    assert (shown["state"], shown["progress"]["paused"]) == ("running", True)
    # What the server lists lags behind what it has started.
    asyncio.run(until(lambda: re.search(r"^ ?slow .* running", bench("job", "list").out, re.MULTILINE)))
    assert bench("job", "concurrency", "slow", "20").status == 0
    assert bench("job", "unpause", "slow").status == 0
    assert bench("job", "watch", "slow", "--json").json["summary"]["passed"] == 24


def test_ctrl_c_detaches_and_the_job_can_be_cancelled_and_resumed(bench: Bench, task: Path) -> None:
    command = [*BENCH, "submit", str(task), "-k", "32", "-n", "1", "--sandbox", "noop", "--job-name", "long"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as submitting:
        assert submitting.stdout is not None
        while "passed" not in submitting.stdout.readline():
            assert submitting.poll() is None
        submitting.send_signal(signal.SIGINT)
        rest = submitting.stdout.read()
    assert submitting.returncode == 130
    assert "Detached. The job runs on." in rest
    assert "bench job cancel long" in rest
    assert bench("job", "cancel", "long").status == 0
    watched = bench("job", "watch", "long", "--json")
    assert watched.status == 1
    assert watched.json["summary"]["not_run"] > 0
    assert "bench job resume long" in watched.err
    resumed = bench("job", "resume", "long", "-n", "20", "--json")
    assert resumed.status == 0
    assert 0 < resumed.json["job"]["started"] < 32
    assert resumed.json["summary"]["passed"] == 32


def test_resume_notices_that_a_task_was_changed(bench: Bench, task: Path) -> None:
    bench("submit", task, "--sandbox", "noop", "--job-name", "changed")
    script = task / "verifier" / "test.sh"
    script.write_text(script.read_text() + "# changed\n")
    ran = bench("job", "resume", "changed")
    assert ran.status == 2
    assert "task greet: " in ran.err


def test_resume_notices_that_a_task_is_gone(bench: Bench, task: Path) -> None:
    bench("submit", task, "--sandbox", "noop", "--job-name", "gone")
    task.rename(task.parent / "elsewhere")
    ran = bench("job", "resume", "gone")
    assert ran.status == 2
    assert f"{task}: does not exist" in ran.err


def test_a_terminal_shows_a_board_and_keeps_the_table(task: Path) -> None:
    screen, terminal = pty.openpty()
    command = [*BENCH, "submit", str(task), "-k", "8", "--sandbox", "noop", "--job-name", "board"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as submitting:
        os.close(terminal)
        shown = b""
        while True:
            try:
                read = os.read(screen, 65536)
            except OSError:
                # How Linux says that nobody writes to the terminal any more.
                break
            if not read:
                break
            shown += read
    os.close(screen)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert submitting.returncode == 0
    # How far it was when it was last looked at is not known.
    assert re.search(r"━ +[0-8]/8 ", text)
    assert "8 rollouts:  8 passed" in text


# --- the stack ---------------------------------------------------------------------------------------------


def test_the_status_of_the_stack_names_server_worker_and_web_ui(bench: Bench) -> None:
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
