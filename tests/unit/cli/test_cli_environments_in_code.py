"""Environments in code on the command line and in files: which word counts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import Bench

from benchflow.cli.submit_request import make_job_config
from benchflow.config_file import rollout_config_from_yaml
from benchflow.contracts.config import JobConfig


def asked(config: Path | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"paths": [Path("tasks")], "config": config}
    return make_job_config(**given, **options)


def test_options_are_the_keys_of_files(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("environment_import_path: mine:World\nenvironment_root: code\n")
    request, of_file = asked(file)
    assert (request.environment_import_path, request.environment_root) == ("mine:World", tmp_path / "code")
    assert of_file.names_world


@pytest.mark.parametrize(
    "option", [{"environment_name": "board"}, {"environment_manifest": Path("x.toml")}], ids=["name", "manifest"]
)
def test_the_command_line_takes_the_place_of_a_files_world(tmp_path: Path, option: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("environment_import_path: mine:World\nenvironment_root: code\n")
    request, of_file = asked(file, **option)
    assert (request.environment_import_path, request.environment_root) == (None, None)
    assert not of_file.names_world


def test_a_rollout_takes_the_same_keys(tmp_path: Path) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("task_path: task\nenvironment_name: board\n")
    lowered = rollout_config_from_yaml(file).lower()
    assert isinstance(lowered, JobConfig)
    assert lowered.environment_name == "board"


def test_a_check_of_an_environment_in_code_is_refused(bench: Bench) -> None:
    ran = bench("env", "check", "mine:World")
    assert ran.status == 2
    assert "environment_conformance" in ran.err
