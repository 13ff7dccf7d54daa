"""Static checks of a task, or of a directory of tasks: nothing is built or run."""

from __future__ import annotations

from pathlib import Path

from benchflow.contracts.task import Task
from benchflow.errors import ManifestError, TaskError
from benchflow.tasks.environments import find_manifest
from benchflow.tasks.find import find_tasks
from benchflow.tasks.layout import check_shebang
from benchflow.tasks.load import read_task
from benchflow.tasks.support import Missing, find_file, find_unsupported_features
from benchflow.user_files.problems import Problem, Problems


def check(path: Path, *, strict: bool = False, context_root: Path | None = None) -> list[Problem]:
    """Return every problem of the task, or of all the tasks, in `path`.

    A path without a task is one of the problems, too; nothing is raised for it.

    Args:
        path: Directory of a task, of several tasks, or of a package (see `find_tasks`).
        strict: Report warnings as errors.
        context_root: Build context, in place of the one that a task names.
    """
    problems = Problems()
    try:
        tasks = find_tasks(path)
    except TaskError as error:
        problems.error("not-found", path, error.message, suggestion=error.remedy)
        return list(problems)
    for task in tasks:
        problems.extend(_check_task(task, context_root))
    if not strict:
        return list(problems)
    return [
        problem.model_copy(update={"severity": "error"}) if problem.severity == "warning" else problem
        for problem in problems
    ]


def _check_task(root: Path, context_root: Path | None) -> list[Problem]:
    reading = read_task(root, context_root=context_root)
    problems = Problems()
    problems.extend(reading.problems)
    if (root / "evidence").is_dir():
        problems.warn("unknown-key", root / "evidence", "is known and not used")
    if reading.task is not None:
        _check_oracle(reading.task, root, problems)
        _check_manifest(reading.task, root, problems)
        for missing in find_unsupported_features(reading.task):
            _report_unsupported(missing, reading.task, root, problems)
    return list(problems)


def _check_manifest(task: Task, root: Path, problems: Problems) -> None:
    try:
        find_manifest(root, task)
    except ManifestError as error:
        problems.error("not-found", root / task.config_file, error.message, key=error.key, suggestion=error.remedy)


def _report_unsupported(missing: Missing, task: Task, root: Path, problems: Problems) -> None:
    """Report a feature that the task asks for and that is not supported."""
    is_file = "/" in missing.key
    problems.add(
        "unsupported",
        "unsupported",
        root / find_file(task, missing.key),
        f"asks for what is not supported: {missing.what}",
        key=None if is_file else missing.key,
        suggestion=missing.remedy,
    )


def _check_oracle(task: Task, root: Path, problems: Problems) -> None:
    """Warn of a task, or a step, without a solve.sh, and check the shebang of each that is there."""
    if task.steps:
        places = [(f"step {name!r}", task.oracle_dir_of(name), f"steps/{name}/") for name in task.step_files]
    else:
        places = [("the task", task.oracle_dir, "")]
    for whose, directory, parent in places:
        name = "oracle" if task.layout == "native" else "solution"
        script = root / (directory or f"{parent}{name}") / "solve.sh"
        if script.is_file():
            check_shebang(script, problems)
        else:
            problems.warn(
                "not-found",
                script,
                f"{whose} has no oracle, so nothing shows that it can be solved",
                suggestion="add a solve.sh that earns the full reward",
            )
