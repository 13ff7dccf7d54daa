"""A rollout's trajectory while it is written: on a terminal, in a pipe and as data."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.command_line import Bench
from support.reading import Reader, reading
from support.told_rollouts import Line, end, one_rollout, say

from benchflow.contracts.rollout_records import Failure
from benchflow.results.write import archive_run
from benchflow.trajectories.journal import append_node


@pytest.fixture(autouse=True)
def _alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack runs, and no cluster is meant."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def following(jobs: Path, *options: str, terminal: bool = False) -> AbstractContextManager[Reader]:
    return reading("job", "watch", "j/greet", "--follow", "--jobs-dir", str(jobs), *options, terminal=terminal)


def lasting(monkeypatch: pytest.MonkeyPatch, jobs: Path) -> None:
    """Have the job's engine be one that cannot be asked, so that only a result ends the rollout."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")


def test_events_are_shown_as_they_come_until_there_is_a_result(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting(monkeypatch, jobs)
    paths = one_rollout(jobs, say("first"))
    lines = [say("first"), {"type": "agent_thought", "text": "second"}]
    with following(jobs) as reader:
        reader.until("── n1 · agent")
        append_node(paths.trajectory, "n1", "agent", lines)
        reader.until("● first")
        end(paths)
        assert reader.rest() == 0
    assert "∴ second" in reader.text and "✓ passed" in reader.text


def test_json_gives_each_event_when_it_comes(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting(monkeypatch, jobs)
    paths = one_rollout(jobs, say("first"))
    with following(jobs, "--json") as reader:
        reader.until('"first"')
        append_node(paths.trajectory, "n1", "agent", [say("first"), say("second")])
        reader.until('"second"')
        end(paths)
        assert reader.rest() == 0
    assert [json.loads(line)["seq"] for line in reader.text.splitlines()] == [0, 1]


def test_an_attempt_that_will_be_repeated_is_not_the_end(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting(monkeypatch, jobs)
    paths = one_rollout(jobs, say("first attempt"))
    failure = Failure(type="SandboxLostError", category="sandbox_lost", message="gone")
    with following(jobs) as reader:
        reader.until("── n1 · agent")
        end(paths, status="errored", rewards=None, error=failure, attempt=1)
        paths.config.write_text("{}")
        archive_run(paths)
        reader.until("The rollout is run again; what was shown so far lies in attempts/.")
        append_node(paths.trajectory, "n1", "agent", [say("second attempt")])
        end(paths, attempt=2)
        assert reader.rest() == 0
    assert "● first attempt" in reader.text and "● second attempt" in reader.text


def test_a_rollout_whose_job_does_not_run_comes_to_an_end(bench: Bench, jobs: Path) -> None:
    one_rollout(jobs, say("cut off"))
    ran = bench("job", "watch", "j", "--follow", "--jobs-dir", jobs)
    assert ran.status == 1
    assert "● cut off" in ran.out
    assert "The job does not run, and this rollout has no result. bench job resume" in ran.out


def test_ctrl_c_shows_what_was_not_complete_and_ends(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting(monkeypatch, jobs)
    one_rollout(jobs, say("no end of a line"))
    with following(jobs) as reader:
        reader.until("── n1 · agent")
        reader.process.send_signal(signal.SIGINT)
        assert reader.rest() == 130
    assert "● no end of a line" in reader.text


def test_a_terminal_shows_words_and_running_calls_before_they_are_complete(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting(monkeypatch, jobs)
    call: Line = {"type": "tool_call", "tool_call_id": "c", "kind": "execute", "title": "make", "status": "in_progress"}
    paths = one_rollout(jobs, say("Looking"))
    with following(jobs, terminal=True) as reader:
        reader.until("Looking")
        append_node(paths.trajectory, "n1", "agent", [say("Looking"), say(" around"), call])
        reader.until("Looking around")
        reader.until("make")
        done = {"type": "tool_call_update", "tool_call_id": "c", "status": "completed", "raw_output": "built"}
        append_node(paths.trajectory, "n1", "agent", [say("Looking"), say(" around"), call, done])
        reader.until("built")
        end(paths)
        assert reader.rest() == 0
