"""Options that are made from the fields of a model."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from benchflow.cli.bench_rescore import RescoreCommand
from benchflow.cli.model_options import ModelCommand, OptionFacts, set_keys
from benchflow.cli.submit_options import SubmitCommand
from benchflow.contracts.base import Model


class Inner(Model):
    """A model in a field of another."""

    key: str | None = None
    """Name of the key; None for the provider's."""

    unlisted: int = 1
    """A field without an option."""


class Settings(Model):
    """A model with a field of each kind."""

    limit_sec: float = 1.5
    """Seconds that `it` takes. Not [more]."""

    rounds: int = Field(default=3, ge=1, le=9)
    """Number of rounds."""

    policy: Literal["one", "two"] = "one"
    """Policy of the rounds."""

    is_shared: bool = False
    """Whether rounds share a world."""

    checks: bool = True
    """Whether rounds are checked."""

    names: list[str] = []
    """Names of rounds. Empty for all of them."""

    inner: Inner = Inner()
    """Further settings."""

    hidden: str = ""
    """A field without an option."""


class SettingsCommand(ModelCommand):
    """A command with the fields of `Settings` as options."""

    panels = {None: {"rounds": OptionFacts(flags="-r --rounds"), "inner.key": OptionFacts()}}
    other_panel = "Others"
    no_options = frozenset({"hidden"})

    def model(self) -> type[Settings]:
        """Return `Settings`."""
        return Settings


seen: list[Any] = []
app = typer.Typer(rich_markup_mode="rich")


@app.command(cls=SettingsCommand)
def run(context: typer.Context, word: str) -> None:
    """Record the given values."""
    seen.append((word, context.obj))


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], {}),
        (["-r", "4", "--limit", "2"], {"rounds": 4, "limit_sec": 2.0}),
        (["--is-shared", "--no-checks"], {"is_shared": True, "checks": False}),
        (["--names", "a", "--names", "b", "--inner-key", "K"], {"names": ["a", "b"], "inner.key": "K"}),
        (["--policy", "three"], {"policy": "three"}),
    ],
)
def test_a_command_gets_the_values_that_are_given(arguments: list[str], given: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["word", *arguments])
    assert (result.exit_code, seen.pop()) == (0, ("word", given))


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["-r", "10"], ["--hidden", "x"], ["--inner-unlisted", "2"]])
def test_a_number_out_of_bounds_and_a_field_without_an_option_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["word", *arguments]).exit_code == 2
    assert not seen


def test_the_help_is_the_docstring_with_bounds_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = [" ".join(line.strip("│ ").split()) for line in CliRunner().invoke(app, ["--help"]).output.splitlines()]
    assert "--rounds -r N [1<=x<=9] Number of rounds. [default: 3]" in lines
    assert "--inner-key KEY Name of the key. [default: the provider's]" in lines
    assert "--limit SEC Seconds that it takes. Not [more]. [default: 1.5]" in lines
    assert "--policy one|two Policy of the rounds. [default: one]" in lines
    assert "--names NAMES Names of rounds. Repeatable. [default: all of them]" in lines
    assert any(line.startswith("--is-shared ") and line.endswith("Rounds share a world.") for line in lines)


@pytest.mark.parametrize("command", [SubmitCommand, RescoreCommand])
def test_all_facts_are_about_fields_with_a_docstring(command: type[ModelCommand]) -> None:
    made = command("name")
    assert made.no_options <= made.model().model_fields.keys()
    lone = typer.Typer(rich_markup_mode="rich")
    lone.command(cls=command)(lambda: None)
    assert CliRunner().invoke(lone, ["--help"]).exit_code == 0


def test_a_key_of_a_table_leaves_the_others() -> None:
    values: dict[str, Any] = {"retry": {"a": 1, "b": 2}, "judge": "invalid"}
    set_keys(values, {"retry.a": 3, "judge.model": "m", "repeats": 2})
    assert values == {"retry": {"a": 3, "b": 2}, "judge": {"model": "m"}, "repeats": 2}
