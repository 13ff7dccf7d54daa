"""Variables of the user's environment that a task takes: they are named, and nothing starts before the user agrees."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from support.command_line import Bench

from benchflow.cli.variables import confirm_variables
from benchflow.contracts.config import JobConfig
from benchflow.jobs import JobPlan, plan_job

pytestmark = pytest.mark.usefixtures("state")

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
    assert ("Nothing was started" in said) is not agrees


def test_a_task_that_takes_nothing_asks_nothing(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    confirm_variables(plan_job(JobConfig(paths=[task], sandbox="noop", jobs_dir=tmp_path)), is_agreed=False)
    assert capsys.readouterr() == ("", "")


# --- what a configuration file sends elsewhere ----------------------------------------------------------


def written(directory: Path, task: Path, **values: object) -> Path:
    """Write a configuration file for a task."""
    file = directory / "theirs.yaml"
    file.write_text(json.dumps({"paths": [str(task)], "sandbox": "noop", **values}))
    return file


JUDGED = """\
reward:
  funcs:
    - {type: llm-judge, rubric: {criteria: [well done]}, model: openai/gpt-4.1, %s}
"""


@pytest.fixture
def judged(task: Path) -> Callable[[str], Path]:
    """Return a task that a model judges; options: of the function that asks it."""

    def make(options: str = "") -> Path:
        file = task / "task.md"
        file.write_text(file.read_text().replace("verifier:\n", f"{JUDGED % options}verifier:\n", 1))
        return task

    return make


@pytest.mark.parametrize(
    "values",
    [
        {"agents": [{"name": "policy", "model": "m", "base_url": "http://far:1/v1", "credentials": ["OF_MINE"]}]},
        {
            "agents": [{"name": "policy", "model": "m", "env": {"OPENAI_API_KEY": "${OF_MINE}"}}],
            "base_url": "http://far:1/v1",
        },
        {"agent": "policy:m", "agent_env": {"OPENAI_API_KEY": "${OF_MINE}"}, "base_url": "http://far:1/v1"},
        {"agent": "policy:m", "agent_env": {"OPENAI_API_KEY": "${OF_MINE}"}, "base_url": "http://127.0.0.1:1/v1"},
    ],
)
def test_a_variable_goes_to_an_address_of_a_file_only_with_consent(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, object]
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    file = written(tmp_path, task, **values)
    ran = bench("submit", "--config", file, "--json")
    assert (ran.status, ran.json["error"]["key"]) == (2, "--yes")
    assert "OF_MINE for the model of policy:m, sent to http://" in ran.json["error"]["message"]
    taken = bench("submit", "--config", file, "--dry-run", "--json").json["variables_taken"]
    assert [row["name"] for row in taken] == ["OF_MINE"]


def test_the_providers_key_goes_to_an_address_of_a_file_only_with_consent(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "geheim-geheim")
    ran = bench("submit", "--config", written(tmp_path, task, agent="policy:m", base_url="http://far:1/v1"))
    assert ran.status == 2
    assert "OPENAI_API_KEY for the model of policy:m, sent to http://far:1/v1" in ran.err.replace("\n", " ")


def test_a_file_gives_agents_a_variable_only_with_consent(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    file = written(tmp_path, task, agent="policy:m", agent_env={"X": "${OF_MINE}"})
    ran = bench("submit", "--config", file, "--json")
    assert ran.status == 2 and "OF_MINE for the agent policy:m, in the sandbox" in ran.json["error"]["message"]


def test_a_key_of_the_command_line_goes_to_an_address_of_a_file_only_with_consent(
    bench: Bench, task: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, task, agent="policy:m", base_url="http://far:1/v1")
    ran = bench("submit", "--config", file, "--agent-env", "OPENAI_API_KEY=geheim-geheim", "--json")
    assert ran.status == 2 and "sent to http://far:1/v1" in ran.json["error"]["message"]
    assert "geheim" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("values", "options"),
    [
        # The address is the user's own word.
        ({"agent": "policy:m", "agent_env": {"OPENAI_API_KEY": "${OF_MINE}"}}, ("--base-url", "http://mine:1/v1")),
        # The variable is, and so is where it goes.
        ({}, ("--agent", "policy:m", "--agent-env", "OF_MINE", "--base-url", "http://mine:1/v1")),
        # The provider itself answers, who knows its own keys.
        ({"agent": "policy:gpt-4.1", "agent_env": {"OPENAI_API_KEY": "${OF_MINE}"}}, ()),
        # The value is the file's own.
        ({"agent": "policy:m", "agent_env": {"OPENAI_API_KEY": "of-the-file"}, "base_url": "http://far:1/v1"}, ()),
    ],
)
def test_what_is_no_strangers_word_is_not_asked(
    bench: Bench,
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, object],
    options: tuple[str, ...],
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    ran = bench("submit", "--config", written(tmp_path, task, **values), *options, "--dry-run", "--json")
    assert ran.json["variables_taken"] == []


def test_a_judges_key_goes_to_an_address_of_a_file_only_with_consent(
    bench: Bench, judged: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    file = written(tmp_path, judged(), judge={"base_url": "http://far:1/v1", "credential": "OF_MINE"})
    ran = bench("submit", "--config", file, "--json")
    assert ran.status == 2 and "OF_MINE for the judge, sent to http://far:1/v1" in ran.json["error"]["message"]
    named = bench("submit", "--config", file, "--judge-base-url", "http://mine:1/v1", "--dry-run", "--json")
    assert named.json["variables_taken"] == []


def test_a_task_sends_a_judge_of_its_own_a_variable_only_with_consent(
    bench: Bench, judged: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    task = judged("base_url: 'http://far:1/v1', credential: OF_MINE")
    ran = bench("submit", task, "--sandbox", "noop", "--json")
    assert ran.status == 2 and "OF_MINE for a judge, sent to http://far:1/v1" in ran.json["error"]["message"]
    (row,) = bench("tasks", "check", task, "--json").json["variables"]
    assert (row["name"], row["taker"]) == ("OF_MINE", "a judge, sent to http://far:1/v1")


def test_a_world_of_a_file_is_given_variables_only_with_consent(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_MINE", "geheim-geheim")
    manifest = '[environment]\nname = "w"\nimage = "debian"\n[environment.forward_env]\nkeys = ["OF_MINE"]\n'
    (tmp_path / "world.toml").write_text(manifest)
    (task / "environment" / "Dockerfile").unlink(missing_ok=True)
    file = written(tmp_path, task, environment_manifest="world.toml", sandbox="docker")
    taken = bench("submit", "--config", file, "--dry-run", "--json").json["variables_taken"]
    assert [row["name"] for row in taken] == ["OF_MINE"]
    options = ("--environment-manifest", tmp_path / "world.toml")
    assert bench("submit", "--config", file, *options, "--dry-run", "--json").json["variables_taken"] == []


def test_a_file_replaces_no_record_of_an_agent(bench: Bench, task: Path, tmp_path: Path) -> None:
    record = {"name": "policy", "launch": ["x"], "endpoints": []}
    ran = bench("submit", "--config", written(tmp_path, task, agents=[{"name": "policy", "record": record}]), "--json")
    assert (ran.status, ran.json["error"]["key"]) == (2, "agents[0].record")
