"""The package of honest work on the system has the layout of published tasks, and so has its untrusted copy."""

from __future__ import annotations

import collections
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from benchflow.contracts.verifier import HardeningConfig
from benchflow.tasks import check, load_task

PACKAGE = ROOT / "benchmarks" / "system-work"
TASKS = {path.name: load_task(path) for path in sorted((PACKAGE / "tasks").iterdir())}
TABLE = runpy.run_path(str(ROOT / "tools" / "honest_table.py"))

ATTACKS = ROOT / "benchmarks" / "attacks" / "tasks" / "makefile" / "environment" / "Dockerfile"
"""An image that begins with both lines that install packages for attacks."""


def runs_of(build: str) -> list[str]:
    """Return what the steps of a Dockerfile run."""
    return [part.split("\nWORKDIR")[0].split("\n#")[0].strip() for part in build.split("RUN ")[1:]]


def build_of(name: str) -> str:
    return (PACKAGE / "tasks" / name / "environment" / "Dockerfile").read_text()


def test_nothing_in_it_is_worth_a_remark() -> None:
    assert check(PACKAGE, strict=True) == []


def test_there_are_forty_tasks_and_more_and_two_of_each_kind() -> None:
    assert len(TASKS) >= 40
    kinds = collections.Counter(task.metadata["kind"] for task in TASKS.values())
    assert [kind for kind, number in kinds.items() if number < 2] == []


@pytest.mark.parametrize("name", TASKS)
def test_a_task_lifts_nothing_declares_nothing_and_needs_no_network(name: str) -> None:
    task = TASKS[name]
    assert task.verifier.hardening == HardeningConfig()
    assert task.verifier.sandbox_mode == "auto"
    assert (task.artifacts, task.verifier.pytest_plugins, task.steps) == ([], [], [])
    assert 'network_mode = "no-network"' in (PACKAGE / "tasks" / name / "task.toml").read_text()


@pytest.mark.parametrize("name", TASKS)
def test_what_it_changes_outside_of_the_workspace_is_told(name: str) -> None:
    metadata: dict[str, Any] = TASKS[name].metadata
    assert set(metadata) <= {"kind", "outside", "process"}
    assert metadata.get("process", True) is True
    assert all(path.startswith("/") and not path.startswith("/app") for path in metadata["outside"])


@pytest.mark.parametrize("name", TASKS)
def test_its_image_begins_with_the_layers_of_the_package(name: str) -> None:
    shared = [*runs_of(ATTACKS.read_text())[:2], runs_of(build_of("ssh-key-made"))[2]]
    own = [run for run in runs_of(build_of(name)) if run.startswith("apt-get")]
    assert own == shared[: len(own)]
    assert len(own) >= 1


@pytest.mark.parametrize("name", TASKS)
def test_it_has_an_oracle_and_a_verifier_that_writes_both_rewards(name: str) -> None:
    directory = PACKAGE / "tasks" / name
    assert all(os.access(directory / script, os.X_OK) for script in ("solution/solve.sh", "tests/test.sh"))
    script = (directory / "tests" / "test.sh").read_text()
    assert "echo 1 > /logs/verifier/reward.txt" in script
    assert "echo 0 > /logs/verifier/reward.txt" in script
    assert list((directory / "tests").glob("test_*.py"))


@pytest.mark.parametrize("unhardened", [False, True])
def test_the_copy_for_an_untrusted_agent_is_the_package_with_the_solutions_in_its_images(
    tmp_path: Path, unhardened: bool
) -> None:
    copy = TABLE["prepare"](tmp_path, unhardened=unhardened)
    assert check(copy, strict=True) == []
    for path in sorted((copy / "tasks").iterdir()):
        assert (path / "environment" / "attack.sh").read_bytes() == (path / "solution" / "solve.sh").read_bytes()
        assert (path / "environment" / "Dockerfile").read_text() == build_of(path.name) + "COPY attack.sh /attack.sh\n"
        lifted = load_task(path).verifier.hardening.model_dump().values()
        assert set(lifted) == {not unhardened}


def test_findings_are_grouped_by_what_was_done() -> None:
    found = [{"item": "kill_processes", "action": "killed", "path": "", "detail": "a process"}]
    found += [{"item": "fresh_logs", "action": "removed", "path": f"/tests/{n}", "detail": ""} for n in range(6)]
    verify = {"metadata": {"hardening": {"findings": found, "left_out": 3}}}
    told = TABLE["findings_of"](verify)
    assert told.split("; ") == [
        "kill_processes: killed a process",
        "fresh_logs: removed /tests/0, /tests/1, /tests/2, /tests/3 and 2 more",
        "3 not listed",
    ]


def test_where_a_verifier_ran_is_told_with_the_reason() -> None:
    assert TABLE["place_of"]({"metadata": {}}) == ("shared", "")
    metadata = {"verified_in": "separate", "verified_in_because": "the agent was root"}
    assert TABLE["place_of"]({"metadata": metadata}) == ("separate", "the agent was root")
