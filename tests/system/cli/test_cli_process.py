"""The command line as a process of its own, and what it needs this machine for."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Bench
from support.paths import ROOT

pytestmark = pytest.mark.usefixtures("state")

HEAVY = ("acp", "docker", "pydantic", "structlog", "temporalio", "yaml")


def test_putting_the_command_line_together_imports_nothing_heavy() -> None:
    code = f"import sys, benchflow.cli.command_line; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"


def test_the_help_about_all_verbs_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "benchflow.cli", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "benchflow.cli.command_line" in loaded
    assert not loaded.intersection(HEAVY)


def test_it_runs_as_a_module_and_imports_nothing_of_the_directory_where_it_is_called(tmp_path: Path) -> None:
    # Not `contextlib` and what that needs: `runpy` has imported it before anything of ours runs.
    for name in (*HEAVY, "__future__", "click", "gc", "json", "logging", "random", "rich", "shlex", "typer", "typing"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    task = str(ROOT / "benchmarks" / "quickstart" / "tasks" / "log-report")
    command = [sys.executable, "-m", "benchflow.cli", "tasks", "check", task]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1 task: no problem\n", "")


def test_a_taken_port_for_the_local_server_ends_with_1(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("BENCHFLOW_STACK_PORT", str(taken.getsockname()[1]))
        ran = bench("submit", task, "--sandbox", "noop", "--jobs-dir", tmp_path / "jobs", "--json")
    assert ran.status == 1
    assert ran.json["error"]["type"] == "StackError"
    assert ran.json["error"]["key"] == "BENCHFLOW_STACK_PORT"


@pytest.mark.local
def test_the_sandbox_that_auto_chose_is_said_with_the_reason(
    bench: Bench, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    ran = bench("submit", tasks, "--dry-run")
    assert "sandbox local: no Docker daemon answers at" in ran.out + ran.err
    plan = bench("submit", tasks, "--dry-run", "--json").json
    assert plan["sandbox"] == "local" and "nobody.sock" in str(plan["sandbox_reason"])
    assert bench("submit", tasks, "--sandbox", "noop", "--dry-run", "--json").json["sandbox_reason"] is None
