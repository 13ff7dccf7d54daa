"""What holds for every command: help, version, start-up, how errors are shown, exit statuses."""

from __future__ import annotations

import json

import pytest
import typer
from support.command_line import Bench
from typer.testing import CliRunner

from benchflow import __version__
from benchflow.cli.command import BenchCommand, Json
from benchflow.errors import StoreError, TaskError


@pytest.mark.parametrize("verb", ["submit", "results", "worker", "job", "tasks", "agent", "eval", "stack"])
def test_help_names_every_verb(bench: Bench, verb: str) -> None:
    assert f" {verb} " in bench("--help").out


@pytest.mark.parametrize(
    "command",
    [
        "submit",
        "eval create",
        "job list",
        "job resume",
        "stack status",
        "tasks check",
        "agent show",
        "results",
        "worker",
    ],
)
def test_every_command_explains_itself(bench: Bench, command: str) -> None:
    ran = bench(*command.split(), "--help")
    assert ran.status == 0
    assert f"Usage: bench {command}" in ran.out


def test_the_version_is_the_packages(bench: Bench) -> None:
    assert bench("--version").out == f"benchflow {__version__}\n"


# --- errors ------------------------------------------------------------------------------------------------


def failing(error: Exception) -> typer.Typer:
    """A command that raises `error`, as any other could."""
    app = typer.Typer()

    @app.command(cls=BenchCommand)
    def fail(as_json: Json = False) -> None:
        raise error

    return app


def test_a_wrong_request_ends_with_2_and_says_where_and_what_to_do(bench: Bench) -> None:
    error = TaskError("is [wrong]", file="task.md", key="agent", remedy="write it [right]")
    result = CliRunner().invoke(failing(error), [])
    assert result.exit_code == 2
    assert result.stderr == "error: task.md: agent: is [wrong]\n  remedy: write it [right]\n"
    assert result.stdout == ""


def test_any_other_typed_error_ends_with_1_and_shows_the_tail_of_its_log(bench: Bench) -> None:
    result = CliRunner().invoke(failing(StoreError("is gone", log_tail="first\nlast")), [])
    assert result.exit_code == 1
    assert result.stderr == "error: is gone\n  │ first\n  │ last\n"


def test_with_json_an_error_is_an_object_on_stdout(bench: Bench) -> None:
    error = TaskError("is wrong", file="task.md", key="agent", remedy="mend it")
    result = CliRunner().invoke(failing(error), ["--json"])
    assert json.loads(result.stdout) == {
        "error": {
            "type": "TaskError",
            "category": "task",
            "message": "is wrong",
            "file": "task.md",
            "key": "agent",
            "remedy": "mend it",
            "log_tail": None,
        }
    }


def test_a_fault_of_ours_shows_no_traceback_but_says_how_to_get_it(bench: Bench) -> None:
    result = CliRunner().invoke(failing(ValueError("oh")), [])
    assert result.exit_code == 1
    assert "ValueError: oh" in result.stderr
    assert "--verbose" in result.stderr
    assert "Traceback" not in result.stderr


def test_verbose_after_the_verb_shows_the_traceback(bench: Bench) -> None:
    result = CliRunner().invoke(failing(ValueError("oh")), ["--verbose"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_ctrl_c_ends_with_130(bench: Bench) -> None:
    result = CliRunner().invoke(failing(KeyboardInterrupt()), [])  # type: ignore[arg-type]
    assert result.exit_code == 130


def test_an_unknown_option_ends_with_2(bench: Bench) -> None:
    assert bench("submit", "--no-such-option").status == 2
