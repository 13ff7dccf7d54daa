"""The quickstart package shows what its README says, and every task in it is sound."""

from __future__ import annotations

import os
import re

import pytest
from support.paths import BENCHMARKS

from benchflow.contracts.task import Task
from benchflow.tasks import check, find_tasks, load_task

PACKAGE = BENCHMARKS / "quickstart"
DIRECTORIES = sorted((PACKAGE / "tasks").iterdir())
NAMES = [directory.name for directory in DIRECTORIES]


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {path.name: load_task(path) for path in find_tasks(PACKAGE)}


def script_dirs(task: Task) -> list[tuple[str, str]]:
    """(verifier directory, oracle directory) of the task, or of each of its steps."""
    places = [(files.verifier_dir, files.oracle_dir) for files in task.step_files.values()]
    return [(str(v), str(o)) for v, o in places or [(task.verifier_dir, task.oracle_dir)]]


def test_the_package_is_found_as_its_tasks(tasks: dict[str, Task]) -> None:
    assert sorted(tasks) == NAMES
    assert len(tasks) >= 8


def test_nothing_in_it_is_worth_a_remark() -> None:
    assert check(PACKAGE, strict=True) == []


def test_both_layouts_are_shown(tasks: dict[str, Task]) -> None:
    assert {task.layout for task in tasks.values()} == {"native", "split"}


@pytest.mark.parametrize("name", NAMES)
def test_scripts_can_be_run_as_they_are(tasks: dict[str, Task], name: str) -> None:
    for verifier, oracle in script_dirs(tasks[name]):
        for script in (f"{verifier}/test.sh", f"{oracle}/solve.sh"):
            path = PACKAGE / "tasks" / name / script
            assert os.access(path, os.X_OK), f"{path} is not executable"
            assert path.read_text().startswith(("#!/bin/sh\n", "#!/bin/bash\n"))


@pytest.mark.parametrize("name", NAMES)
def test_the_agent_never_sees_the_answer(tasks: dict[str, Task], name: str) -> None:
    context = PACKAGE / "tasks" / name / "environment"
    shipped = {path.name for path in context.rglob("*")}
    assert not shipped & {"test.sh", "solve.sh", "check.py"}


@pytest.mark.parametrize("name", NAMES)
def test_images_start_from_the_same_base_and_the_same_layer(name: str) -> None:
    text = (PACKAGE / "tasks" / name / "environment" / "Dockerfile").read_text()
    assert text.startswith("FROM debian:bookworm-slim\n")
    installs = re.findall(r"^RUN apt-get(?:.*\\\n)*.*$", text, flags=re.MULTILINE)
    assert installs in ([], [SHARED_LAYER])


SHARED_LAYER = """\
RUN apt-get update && apt-get install -y --no-install-recommends \\
      curl git python3 python3-pytest sqlite3 && rm -rf /var/lib/apt/lists/*"""


def test_the_features_that_the_readme_promises_are_there(tasks: dict[str, Task]) -> None:
    def files(name: str) -> str:
        root = PACKAGE / "tasks" / name
        return "\n".join(
            path.read_text() for path in root.rglob("*") if path.is_file() and "/environment/" not in str(path)
        )

    assert "-m pytest" in files("ttl-cache")
    assert "reward.json" in files("pack-telemetry") and '"metrics"' in files("pack-telemetry")
    assert "RUN sqlite3" in (PACKAGE / "tasks/revenue-sql/environment/Dockerfile").read_text()
    assert [step.name for step in tasks["cut-a-release"].steps] == ["changelog", "bump", "package"]
    assert tasks["cut-a-release"].steps[0].min_reward == 0.5
    assert tasks["cut-a-release"].steps[2].artifacts[0].source == "/app/dist"
    desk = tasks["ticket-desk"].sandbox
    assert desk.healthcheck is not None and desk.healthcheck.start_interval_sec == 0.2
    assert [command.cwd for command in desk.setup_commands] == ["/srv/desk", "/srv/desk"]
    assert {name for name, task in tasks.items() if task.artifacts} >= {
        "log-report",
        "flatten-orders",
        "pack-telemetry",
    }
    assert tasks["flatten-orders"].verifier.env == {"EXPORT_SEED": "20240229"}


@pytest.mark.parametrize(
    "copy",
    [
        ("log-report", "environment/access.log", "verifier/access.log"),
        ("ticket-desk", "environment/seed.py", "verifier/seed.py"),
        ("flatten-orders", "environment/make_export.py", "tests/make_export.py"),
    ],
)
def test_what_the_verifier_holds_again_is_what_the_agent_got(copy: tuple[str, str, str]) -> None:
    name, shipped, held = copy
    root = PACKAGE / "tasks" / name
    assert (root / shipped).read_bytes() == (root / held).read_bytes()


def test_the_readme_lists_every_task() -> None:
    text = (PACKAGE / "README.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", text, flags=re.MULTILINE) and all(
        f"| `{name}` |" in text for name in NAMES
    )
