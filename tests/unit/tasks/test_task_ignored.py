"""Files of a task that are kept out of sandboxes, as Harbor keeps them out: `.harborignore`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import TaskError
from benchflow.tasks import digest_tree, find_ignored_files, load_task, unpack, write_pack

Builder = Callable[..., Path]


def test_rules_hold_in_their_directory_and_below_and_the_last_one_that_matches_decides(split: Builder) -> None:
    root = split(
        files={
            "tests/.harborignore": "*.log\n/build/\n!kept.log\n",
            "tests/big.log": "",
            "tests/kept.log": "",
            "tests/build/x": "",
            "tests/deep/build/x": "",
            "tests/deep/big.log": "",
            "tests/deep/.harborignore": "!big.log\nx\n",
            "solution/big.log": "",
            "environment/.harborignore": "*\n",
            ".harborignore": "*\n",
            "steps/one/workdir/.harborignore": "*\n",
            "steps/one/tests/.harborignore": "a\n",
            "steps/one/tests/a/b": "",
            "steps/one/solution/a": "",
        }
    )
    assert find_ignored_files(root) == [
        "steps/one/tests/.harborignore",
        "steps/one/tests/a",
        "tests/.harborignore",
        "tests/big.log",
        "tests/build",
        "tests/deep/.harborignore",
        "tests/deep/build/x",
    ]


def test_a_link_to_what_is_left_out_is_left_out(split: Builder) -> None:
    root = split(files={"tests/.harborignore": "data\n", "tests/data/x": "", "tests/more/y": ""})
    (root / "tests/more/link").symlink_to("../data/x")
    (root / "tests/more/other").symlink_to("y")
    assert find_ignored_files(root) == ["tests/.harborignore", "tests/data", "tests/more/link"]


def test_the_frozen_task_is_without_them_and_is_frozen_alike_again(split: Builder, tmp_path: Path) -> None:
    root = split(files={"tests/.harborignore": "*.log\n", "tests/big.log": "x", "solution/.harborignore": "\n"})
    left_out = find_ignored_files(root)
    digest = digest_tree(root, exclude=left_out)
    write_pack(root, tmp_path / "pack.tar", exclude=left_out)
    unpack(tmp_path / "pack.tar", tmp_path / "frozen")
    assert sorted(path.name for path in (tmp_path / "frozen" / "tests").iterdir()) == ["test.sh"]
    assert find_ignored_files(tmp_path / "frozen") == [] and digest_tree(tmp_path / "frozen") == digest
    assert load_task(tmp_path / "frozen", name=root.name) == load_task(root)


@pytest.mark.parametrize(
    ("files", "at", "says"),
    [
        ({"tests/.harborignore": "*.sh\n"}, "tests/test.sh", "left out"),
        ({"solution/.harborignore": "solve*\n"}, "solution/solve.sh", "left out"),
        ({"tests/.harborignore": "x\n", "tests/Dockerfile": "FROM scratch\n"}, "tests/.harborignore", "build context"),
        ({"tests/.harborignore": b"\xff"}, "tests/.harborignore", "no rules"),
        ({"tests/.harborignore/x": ""}, "tests/.harborignore", "is a directory"),
    ],
)
def test_rules_that_leave_out_what_is_needed_or_cannot_be_read_are_an_error(
    split: Builder, files: dict[str, str | bytes], at: str, says: str
) -> None:
    root = split(files=files)
    with pytest.raises(TaskError, match=says) as caught:
        load_task(root)
    assert caught.value.file == str(root / at)
