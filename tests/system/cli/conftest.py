"""The command line as a function, and tasks to give it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from support.command_line import Bench, Ran
from typer.testing import CliRunner

from benchflow.cli.app import app
from benchflow.tasks import init_task


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
