"""The check of a task, or of a directory of tasks, lists everything and raises nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchflow.tasks import check

Builder = Callable[..., Path]


def test_a_good_task_has_no_problems(split: Builder, native: Builder, tmp_path: Path) -> None:
    split()
    native()
    assert check(tmp_path) == []


def test_the_problems_of_all_tasks_are_listed(split: Builder, native: Builder, tmp_path: Path) -> None:
    one, two = native("agnet: 1\n", name="one"), split("[agent]\ntimeout_sec = 0", name="two")
    assert [(problem.file, problem.key) for problem in check(tmp_path)] == [
        (str(one / "task.md"), "agnet"),
        (str(two / "task.toml"), "agent.timeout_sec"),
    ]


def test_strict_turns_warnings_into_errors(split: Builder) -> None:
    root = split("flavour = 1")
    assert [problem.severity for problem in check(root)] == ["warning"]
    assert [problem.severity for problem in check(root, strict=True)] == ["error"]


def test_a_missing_oracle_is_a_warning(split: Builder) -> None:
    steps = {"steps/one/instruction.md": "Go.", "solution/solve.sh": None}
    root = split("[[steps]]\nname = 'one'", steps)
    assert [(problem.severity, problem.file) for problem in check(root)] == [
        ("warning", str(root / "steps/one/solution/solve.sh"))
    ]
    bare = split(files={"solution/solve.sh": None}, name="bare")
    assert [problem.file for problem in check(bare)] == [str(bare / "solution/solve.sh")]


def test_an_oracle_that_cannot_run_is_an_error(split: Builder) -> None:
    root = split(files={"solution/solve.sh": b"#!/bin/sh\r\n"})
    assert [problem.severity for problem in check(root)] == ["error"]


def test_a_link_out_of_the_task_is_an_error(split: Builder) -> None:
    root = split()
    (root / "environment" / "secret").symlink_to("/etc/passwd")
    (problem,) = check(root)
    assert (problem.severity, problem.file) == ("error", str(root / "environment" / "secret"))


def test_known_directories_that_are_not_used_are_listed(split: Builder) -> None:
    root = split(files={"evidence/run.json": "{}"})
    assert [problem.file for problem in check(root)] == [str(root / "evidence")]


def test_a_path_without_a_task_is_a_problem(tmp_path: Path) -> None:
    (problem,) = check(tmp_path / "nowhere")
    assert problem.severity == "error"
    assert "does not exist" in problem.message


def test_a_problem_reads_as_one_line(native: Builder) -> None:
    root = native("agnet: 1\n")
    assert [str(problem) for problem in check(root)] == [
        f"error: {root}/task.md: agnet: is not a known key (did you mean `agent`?)"
    ]
