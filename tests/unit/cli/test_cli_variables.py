"""Variables of the user's environment that a task takes: they are named, and nothing starts before the user agrees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from support.command_line import Bench

from benchflow.cli.variables import confirm_variables
from benchflow.contracts.config import JobConfig
from benchflow.jobs import JobPlan, plan_job

NAMED = "AWS_SECRET_ACCESS_KEY  for the verifier, in its sandbox  (greet)"


@pytest.fixture
def taking(task: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task that takes a variable, which is set, and one that is not."""
    file = task / "task.md"
    env = "{K: '${AWS_SECRET_ACCESS_KEY}', L: '${NOT_SET_HERE:-none}'}"
    file.write_text(file.read_text().replace("verifier:\n", f"verifier:\n  env: {env}\n", 1))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-geheim")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    return task


@pytest.fixture
def plan(taking: Path, tmp_path: Path) -> JobPlan:
    return plan_job(JobConfig(paths=[taking], sandbox="noop", jobs_dir=tmp_path / "jobs"))


def test_a_check_names_them_and_what_they_are_for(bench: Bench, taking: Path) -> None:
    ran = bench("tasks", "check", taking)
    assert ran.status == 0 and "geheim" not in ran.out
    assert NAMED in ran.out and "NOT_SET_HERE  for the verifier" in ran.out
    (first, _) = bench("tasks", "check", taking, "--json").json["variables"]
    assert first == {"name": "AWS_SECRET_ACCESS_KEY", "taker": "the verifier, in its sandbox", "tasks": ["greet"]}


def test_a_dry_run_names_those_that_are_set(bench: Bench, taking: Path) -> None:
    request = ("submit", taking, "--sandbox", "noop", "--dry-run")
    ran = bench(*request)
    assert (ran.status, NAMED in ran.out, "NOT_SET_HERE  for" in ran.out) == (0, True, False)
    assert [row["name"] for row in bench(*request, "--json").json["variables_taken"]] == ["AWS_SECRET_ACCESS_KEY"]


def test_without_a_terminal_nothing_starts_unless_the_user_has_agreed(bench: Bench, taking: Path) -> None:
    ran = bench("submit", taking, "--sandbox", "noop", "--json")
    assert ran.status == 2
    assert (ran.json["error"]["key"], "--yes (-y)" in ran.json["error"]["remedy"]) == ("--yes", True)
    assert NAMED in ran.err


def test_who_agreed_on_the_command_line_is_told_and_not_asked(
    plan: JobPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    confirm_variables(plan, is_agreed=True)
    assert NAMED in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "agrees"), [("\n", True), ("y\n", True), ("n\n", False), ("what?\n", False), ("\4", False)]
)
def test_at_a_terminal_the_user_is_asked(
    typed: str, agrees: bool, plan: JobPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.openpty()
    try:
        os.write(ours, typed.encode())
        with os.fdopen(theirs) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            if agrees:
                confirm_variables(plan, is_agreed=False)
            else:
                with pytest.raises(typer.Exit):
                    confirm_variables(plan, is_agreed=False)
    finally:
        os.close(ours)
    said = capsys.readouterr().err
    assert NAMED in said and "Proceed? (Y/n)" in said
    assert ("Nothing was started." in said) is not agrees


def test_a_task_that_takes_nothing_asks_nothing(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    confirm_variables(plan_job(JobConfig(paths=[task], sandbox="noop", jobs_dir=tmp_path)), is_agreed=False)
    assert capsys.readouterr() == ("", "")
