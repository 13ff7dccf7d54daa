"""Tasks whose names, builds, oracles and verifiers attack the terminal: what a person and the logs get of them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.hostile_text import FORGED, HOSTILE, OURS, RAW, raw_in
from support.made_once import made_once

from benchflow.paths import StatePaths
from benchflow.tasks import init_task

pytestmark = pytest.mark.local

SAID = FORGED.encode() + b"\n\x9b2J\xc2\x9b2J\x1bc\n"
"""What is printed inside: raw bytes of C1, too."""

NAME = HOSTILE.replace("\0", "").replace("/", "")[:60]
"""A directory's name."""

SAY = "cat /opt/said; cat /opt/said >&2"


def _write(root: Path, name: str, *, build: str = "", solve: str = SAY, verify: str = SAY, user: str = "root") -> None:
    task = init_task(root, "made", layout="split")
    (task / "environment" / "said").write_bytes(SAID)
    (task / "environment" / "Dockerfile").write_text(f"FROM debian:bookworm-slim\nCOPY said /opt/said\n{build}\n")
    (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\n{solve}\n")
    (task / "tests" / "test.sh").write_text(f"#!/bin/sh\n{verify}\n")
    (task / "task.toml").write_text(f'[agent]\nuser = "{user}"\n')
    task.rename(task.with_name(name))


def _on_terminal(place: Path, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal of its own. Return its exit status, and all that the terminal received."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "30"}
    command = [sys.executable, "-m", "benchflow.cli", *arguments]
    process = subprocess.Popen(command, cwd=place, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    received = b""
    try:
        while data := os.read(ours, 65536):
            received += data
    except OSError:
        pass  # Linux reports the end of a terminal's last user as an error.
    os.close(ours)
    # The terminal's line discipline puts a carriage return before each line feed.
    return process.wait(60), received.decode(errors="surrogateescape").replace("\r\n", "\n")


@made_once()
def job(root: Path) -> tuple[Path, int, str]:
    """The directory in which a job of such tasks was run on a terminal, its exit status, and what was shown of it."""
    tasks = root / "set"
    _write(tasks, NAME, verify=f"{SAY}; echo 1 > /logs/verifier/reward.txt")
    _write(tasks, "builds", build="RUN cat /opt/said; exit 3")
    _write(tasks, "verifies", verify=f"{SAY}; exit 3")
    _write(tasks, "rewards", verify="head -n 1 /opt/said > /logs/verifier/reward.txt")
    _write(tasks, "solves", solve=f"{SAY}; exit 3", user="nobody")
    status, shown = _on_terminal(
        root, "submit", "set", "--sandbox", "local", "--job-name", "hostile", "--max-retries", "0"
    )
    return root, status, shown


def test_a_submit_shows_nothing_raw_while_it_runs_and_at_its_end(job: tuple[Path, int, str]) -> None:
    _, status, shown = job
    assert status == 1
    assert raw_in(shown) == []
    plain = OURS.sub("", shown)
    assert "5 rollouts:" in plain and "9 rollouts" in plain and "]52;c;" in plain
    # The live board still draws and redraws itself, in colours.
    assert "\x1b[2K" in shown and "\x1b[?25l" in shown and "\x1b[32m" in shown


@pytest.mark.parametrize(
    "command",
    [
        "job show hostile",
        "job watch hostile",
        "job watch hostile/verifies --follow",
        "results hostile --all",
        "tree show hostile/rewards",
    ],
)
def test_what_is_shown_afterwards_has_nothing_raw(job: tuple[Path, int, str], command: str) -> None:
    _, shown = _on_terminal(job[0], *command.split())
    assert raw_in(shown) == []
    assert "]52;c;" in shown, shown


def test_json_on_a_terminal_has_nothing_raw_and_the_stored_data(job: tuple[Path, int, str]) -> None:
    place, *_ = job
    _, shown = _on_terminal(place, "results", "hostile", "--json")
    assert raw_in(shown) == []
    rows = {row["task_name"]: row for row in json.loads(shown)["rollouts"]}
    assert NAME in rows
    stored = [json.loads(line) for line in (place / "jobs/hostile/results.jsonl").read_bytes().splitlines()]
    assert {row["task_name"]: row for row in stored} == rows
    assert any(RAW.search(json.dumps(row, ensure_ascii=False)) for row in stored), "data stay as they are"


def test_the_logs_of_the_stack_have_nothing_raw(job: tuple[Path, int, str]) -> None:
    logs = [path for path in StatePaths.default().logs.iterdir() if path.is_file()]
    assert logs
    for log in logs:
        text = log.read_text(errors="surrogateescape")
        # The server writes with its own colours, and nothing but ids and names of ours.
        assert RAW.search(OURS.sub("", text)) is None, log.name
