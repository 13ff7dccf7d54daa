"""The office package as it is written: tasks of the same parts, traps that nobody is warned of, and a table of them."""

from __future__ import annotations

import os
import re

import pytest
from support.office_agents import CARELESS, PACKAGE

from benchflow.contracts.task import Task
from benchflow.tasks import check, find_tasks, load_task

NAMES = sorted(path.name for path in (PACKAGE / "tasks").iterdir())
PORTS = {"mail": 9101, "chat": 9102, "calendar": 9103, "documents": 9104, "files": 9105}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {path.name: load_task(path) for path in find_tasks(PACKAGE)}


def test_nothing_in_the_package_is_worth_a_remark(tasks: dict[str, Task]) -> None:
    assert sorted(tasks) == NAMES and len(NAMES) >= 12
    assert check(PACKAGE, strict=True) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_made_of_the_same_parts_as_the_others(tasks: dict[str, Task], name: str) -> None:
    task, root = tasks[name], PACKAGE / "tasks" / name
    dockerfile = (root / "environment" / "Dockerfile").read_text()
    assert dockerfile == f"FROM benchflow/office\nRUN office-seed {name} --data /data\n"
    assert (PACKAGE / "image" / "worlds" / f"{name}.toml").is_file()
    assert (root / "verifier" / "test.sh").read_text() == '#!/bin/sh\nexec office-check "$(dirname "$0")/check.py"\n'
    assert all(os.access(root / script, os.X_OK) for script in ("verifier/test.sh", "oracle/solve.sh"))
    assert (task.agent.user, task.sandbox.network_mode) == ("agent", "no-network")
    urls = {server.name: server.url for server in task.sandbox.mcp_servers}
    assert urls == {service: f"http://localhost:{port}/mcp" for service, port in PORTS.items()}
    assert {server.transport for server in task.sandbox.mcp_servers} == {"streamable-http"}


@pytest.mark.parametrize("name", NAMES)
def test_the_agent_is_told_where_the_services_are_and_nothing_of_a_trap(tasks: dict[str, Task], name: str) -> None:
    prompt = tasks[name].instruction
    assert "http://localhost:9101" in prompt and "/openapi.json" in prompt
    assert not re.search(r"(?i)trap|careful|confidential|inject|external|do not|don't|correct(ed|ion)", prompt)


def test_every_trap_has_an_agent_that_falls_into_it(tasks: dict[str, Task]) -> None:
    trapped = {name for name, task in tasks.items() if "trap" in task.metadata}
    assert trapped == set(CARELESS)
    kinds = {tasks[name].metadata["trap"] for name in trapped}
    assert kinds >= {"confidential-paragraph", "wrong-recipient", "hidden-instruction", "destructive-shortcut"}


def test_tasks_of_one_service_of_three_and_of_all_are_there(tasks: dict[str, Task]) -> None:
    assert {len(task.metadata["services"]) for task in tasks.values()} >= {1, 2, 3, 5}


def test_the_table_of_tasks_has_every_one_of_them(tasks: dict[str, Task]) -> None:
    table = (PACKAGE / "TASKS.md").read_text()
    rows = {found[1]: found[0] for found in re.finditer(r"^\| `([a-z-]+)` \|.*$", table, flags=re.MULTILINE)}
    assert sorted(rows) == NAMES
    for name, task in tasks.items():
        assert all(service in rows[name] for service in task.metadata["services"])


# --- what verifiers are written with --------------------------------------------------------------------


@pytest.fixture
def office_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the packages of the office world be imported."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for path in (PACKAGE / "image" / "packages").iterdir():
        monkeypatch.syspath_prepend(path)


@pytest.mark.usefixtures("office_packages")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("EUR 1,450 or 1.450 or 1 450", [1450, 1450, 1450]),
        ("2,641.00 and 2.641,00 and 432.4", [2641, 2641, 432.4]),
        ("six guests, 12 of 18", [6, 12, 18]),
        ("| **total** | 95 |", [95]),
    ],
)
def test_numbers_are_found_however_they_are_written(text: str, named: list[float]) -> None:
    from office_check.outcomes import numbers

    assert numbers(text) == named


@pytest.mark.usefixtures("office_packages")
@pytest.mark.parametrize(
    "text",
    ["21 April", "on the 21st of April", "April 21", "Apr 21st", "21.4.", "21/04/2026", "2026-04-21", "Tue 21 Apr."],
)
def test_days_are_found_however_they_are_written(text: str) -> None:
    from office_check.outcomes import names_date

    assert names_date(text, "2026-04-21")
    assert not names_date(text, "2026-04-14") and not names_date(text, "2026-05-21")
