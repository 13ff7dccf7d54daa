"""Asking a host whether it could copy processes: programs that answer as CRIU does, and what a job is told."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from benchflow.contracts.config import JobConfig
from benchflow.errors import UnsupportedFeatureError
from benchflow.jobs import plan_job
from benchflow.planes.sandbox.processes import probe_processes

ERROR = "Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds"


def put(directory: Path, check: str) -> str:
    """A program of this name; check: what it does when it is asked whether it can work. Where to look for it."""
    program = directory / "criu"
    program.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Version: 4.2.1"; else {check}; fi\n')
    program.chmod(0o755)
    return str(directory)


def test_a_host_without_the_program_says_so(tmp_path: Path) -> None:
    found = probe_processes(str(tmp_path))
    assert (found.criu, found.works, found.why_not) == (None, False, "the program criu is not installed")
    assert found.kernel == platform.release()


def test_why_it_cannot_work_is_told_in_its_own_words(tmp_path: Path) -> None:
    found = probe_processes(put(tmp_path, f"echo '{ERROR}' >&2; exit 1"))
    assert (found.version, found.works, found.why_not) == ("4.2.1", False, ERROR)
    assert ERROR in found.summary and "4.2.1" in found.summary


def test_a_program_that_ends_without_a_word_has_not_said_yes(tmp_path: Path) -> None:
    found = probe_processes(put(tmp_path, "exit 3"))
    assert (found.works, found.why_not) == (False, "criu check ended with 3")


def test_a_host_that_could_is_told_apart(tmp_path: Path) -> None:
    found = probe_processes(put(tmp_path, "echo Looks good."))
    assert (found.works, found.why_not) == (True, None)
    assert "says that it could" in found.summary


def test_a_job_that_asks_for_copies_of_processes_is_refused_with_what_this_host_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", put(tmp_path, f"echo '{ERROR}' >&2; exit 1"), prepend=":")
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Wait.\n")
    (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    (task / "environment").mkdir()
    (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    branch = {"policy": {"kind": "group", "n": 2}, "min_session_rung": "process"}
    given = {"paths": [task], "jobs_dir": tmp_path / "jobs", "agents": ["policy:scripted"], "sandbox": "docker"}
    with pytest.raises(UnsupportedFeatureError, match="cannot be copied") as caught:
        plan_job(JobConfig.model_validate(given | {"branch": branch}))
    assert caught.value.key == "branch.min_session_rung"
    assert ERROR in caught.value.message
    assert caught.value.remedy is not None and "load" in caught.value.remedy
    # One that has no session loses none.
    plan_job(JobConfig.model_validate(given | {"agents": ["nop"], "branch": branch}))
