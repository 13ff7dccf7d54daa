"""No file of this host comes into a task, whatever a stranger's task directory links to or names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow.errors import TaskError
from benchflow.tasks import digest_tree, load_task, write_pack
from benchflow.tasks.task_check import check

KEY = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "id_rsa"
    file.parent.mkdir()
    file.write_text(KEY)
    return file


@pytest.fixture
def task(tmp_path: Path) -> Path:
    root = tmp_path / "tasks" / "one"
    (root / "environment").mkdir(parents=True)
    (root / "environment" / "Dockerfile").write_text("FROM alpine\n")
    (root / "tests").mkdir()
    (root / "tests" / "test.sh").write_text("#!/bin/sh\n")
    (root / "instruction.md").write_text("Do it.")
    (root / "task.toml").write_text('version = "1.0"\n')
    return root


@pytest.mark.parametrize("name", ["instruction.md", "task.toml", "tests/test.sh", "environment/Dockerfile", "other"])
def test_a_link_to_a_file_of_the_host_is_refused_unread(task: Path, key: Path, name: str) -> None:
    (task / name).unlink(missing_ok=True)
    (task / name).symlink_to(key)
    with pytest.raises(TaskError, match="leads out of the directory"):
        load_task(task)
    said = [str(problem) for problem in check(task)]
    assert len(said) == 1 and "leads out" in said[0] and KEY not in said[0]


def test_a_directory_of_the_host_is_no_part_of_a_task(task: Path, key: Path) -> None:
    (task / "tests" / "test.sh").unlink()
    (task / "tests").rmdir()
    (task / "tests").symlink_to(key.parent)
    with pytest.raises(TaskError, match="leads out of the directory"):
        load_task(task)


@pytest.mark.parametrize("named", ["/", "/etc", "../../home", "../../../../../../.."])
def test_a_task_cannot_choose_a_directory_of_the_host_as_its_build_context(
    task: Path, key: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(key.parent))
    (task / "task.toml").write_text(f'version = "1.0"\ncontext_root = "{named}"\n')
    with pytest.raises(TaskError, match="may not choose"):
        load_task(task)
    assert load_task(task, context_root=key.parent).context_root == str(key.parent)


def test_the_users_home_is_no_build_context_although_the_task_lies_in_it(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(task.parent))
    (task / "task.toml").write_text('version = "1.0"\ncontext_root = ".."\n')
    with pytest.raises(TaskError, match="may not choose"):
        load_task(task)


def test_what_is_a_file_when_it_is_listed_and_a_link_when_it_is_read_is_refused(
    task: Path, key: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = os.readlink

    def swap(*args: object, **options: object) -> str:
        (task / "instruction.md").unlink()
        (task / "instruction.md").symlink_to(key)
        return listed(*args, **options)  # type: ignore[arg-type]

    # The only link comes before `instruction.md`: whoever follows it has listed all files, and read none of them.
    (task / "before").symlink_to("instruction.md")
    monkeypatch.setattr(os, "readlink", swap)
    with pytest.raises(TaskError):
        digest_tree(task)
    (task / "instruction.md").unlink()
    (task / "instruction.md").write_text("Do it.")
    with pytest.raises(TaskError):
        write_pack(task, tmp_path / "pack.tar")
    assert not (tmp_path / "pack.tar").exists()
