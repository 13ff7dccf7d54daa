"""The command line as tests see it: arguments in; exit status, output and errors out. And tasks to give it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer.rich_utils  # noqa: F401  # It reads the terminal's variables once, when it is imported.
from typer.testing import CliRunner

from benchflow.cli.command_line import app
from benchflow.tasks import init_task


@dataclass(frozen=True)
class Ran:
    """What a command did. status: its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Bench = Callable[..., Ran]


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Run `bench` with arguments, in this process; the logging that it sets up is undone afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*arguments: str | Path) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="bench")
        return Ran(result.exit_code, result.stdout, result.stderr)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A small task that its oracle solves."""
    return init_task(tmp_path, "greet")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A directory of three tasks."""
    directory = tmp_path / "set"
    for name in ("one", "three", "two"):
        init_task(directory, name)
    return directory
