"""Which tasks a path means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import TaskError
from benchflow.tasks import find_tasks, load_task

Builder = Callable[..., Path]


def test_a_task_directory_is_itself(split: Builder) -> None:
    root = split()
    assert find_tasks(root) == [root]


def test_a_directory_of_tasks_is_its_tasks_sorted(native: Builder, split: Builder, tmp_path: Path) -> None:
    b, a = native(name="b"), split(name="a")
    (tmp_path / "README.md").write_text("Not a task.")
    (tmp_path / "shared").mkdir()
    split(name=".hidden")
    assert find_tasks(tmp_path) == [a, b]


def test_a_package_is_the_tasks_inside(native: Builder, tmp_path: Path) -> None:
    task = native(name="package/tasks/one")
    package = tmp_path / "package"
    (package / "environment.toml").write_text("[environment]\n")
    assert find_tasks(package) == [task]


def test_a_half_made_task_is_found_so_that_it_is_reported(split: Builder) -> None:
    root = split(files={"task.toml": None})
    (root / "task.toml").unlink(missing_ok=True)
    assert find_tasks(root.parent) == [root]
    with pytest.raises(TaskError, match=r"neither a task\.md nor a task\.toml"):
        load_task(root)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path / "sub").mkdir(parents=True), "holds no task"),
    ],
)
def test_a_path_without_a_task_says_why(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "here"
    make(path)
    with pytest.raises(TaskError, match=words) as caught:
        find_tasks(path)
    assert caught.value.file == str(path)
    assert caught.value.remedy
