"""A new task is complete: it passes its own check and packs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from benchflow.errors import StoreError, TaskError
from benchflow.tasks import check, init_task, load_task


@pytest.mark.parametrize("layout", ["native", "split"])
def test_a_new_task_passes_the_strict_check(tmp_path: Path, layout: Literal["native", "split"]) -> None:
    root = init_task(tmp_path / "tasks", "hello", layout=layout)
    assert root == tmp_path / "tasks" / "hello"
    assert check(root, strict=True) == []
    task = load_task(root)
    assert (task.layout, task.info.name) == (layout, "benchflow/hello")
    for script in (f"{task.verifier_dir}/test.sh", f"{task.oracle_dir}/solve.sh"):
        assert os.access(root / script, os.X_OK)


def test_a_new_task_leaves_room_for_a_real_agent(tmp_path: Path) -> None:
    # docs/agents.md has what they were seen to use.
    assert load_task(init_task(tmp_path, "hello")).sandbox.memory_mb >= 4096


def test_both_layouts_are_the_same_task(tmp_path: Path) -> None:
    native = load_task(init_task(tmp_path / "a", "org/hello"))
    split = load_task(init_task(tmp_path / "b", "org/hello", layout="split"))
    places = {"layout", "config_file", "verifier_dir", "oracle_dir"}
    assert native.model_dump(exclude=places) == split.model_dump(exclude=places)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b/c/", "/a", "../a", "a b", "-a", "ä"])
def test_a_name_that_cannot_be_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="name"):
        init_task(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    init_task(tmp_path, "hello")
    with pytest.raises(TaskError, match="exists already"):
        init_task(tmp_path, "hello")


def test_a_place_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        init_task(tmp_path / "file", "hello")
