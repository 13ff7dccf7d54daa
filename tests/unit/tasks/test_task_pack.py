"""Packs and digests: equal for equal content, different for any difference, and never an escape."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import CorruptArtifactError, StoreError, TaskError
from benchflow.tasks import digest_tree, unpack, write_pack


def tree(root: Path) -> Path:
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "a.txt").write_text("a")
    (root / "sub" / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (root / "sub" / "deep" / "run.sh").chmod(0o755)
    (root / "empty").mkdir()
    (root / "ünïcode name").write_bytes(b"\0\xff")
    (root / "link").symlink_to("sub/a.txt")
    return root


def packed(root: Path, name: str = "pack.tar") -> bytes:
    target = root.parent / name
    write_pack(root, target)
    return target.read_bytes()


def test_the_same_content_gives_the_same_digest_and_the_same_bytes(tmp_path: Path) -> None:
    one = tree(tmp_path / "one")
    two = tree(tmp_path / "two")
    for path in two.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    (two / "sub" / "a.txt").chmod(0o600)
    (two / "empty").chmod(0o700)
    assert digest_tree(one) == digest_tree(two)
    assert packed(one, "1.tar") == packed(two, "2.tar")


def test_the_order_in_which_files_were_made_does_not_matter(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(40)]
    digests = set()
    for seed in range(3):
        root = tmp_path / str(seed)
        root.mkdir()
        for name in random.Random(seed).sample(names, len(names)):
            (root / name).write_text(name)
        digests.add((digest_tree(root), packed(root, f"{seed}.tar")))
    assert len(digests) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "sub" / "a.txt").write_text("b"),
        lambda root: (root / "sub" / "a.txt").rename(root / "sub" / "b.txt"),
        lambda root: (root / "sub" / "a.txt").chmod(0o755),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "empty").rmdir(),
        lambda root: (root / "link").unlink(),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("sub")),
        lambda root: ((root / "link").unlink(), (root / "link").write_text("a")),
    ],
)
def test_any_difference_gives_another_digest(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = tree(tmp_path / "one")
    before, bytes_before = digest_tree(root), packed(root)
    change(root)
    assert digest_tree(root) != before
    assert packed(root) != bytes_before


def test_what_changes_by_itself_is_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    before = digest_tree(root)
    for name in (".git/HEAD", "sub/__pycache__/a.pyc", "sub/.DS_Store"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    assert digest_tree(root) == before


def test_excluded_paths_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    without = tree(tmp_path / "two")
    shutil.rmtree(without / "sub" / "deep")
    assert digest_tree(root, exclude=["sub/deep"]) == digest_tree(without)


def test_a_pack_comes_back_as_it_was(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    write_pack(root, tmp_path / "store" / "pack.tar")
    target = tmp_path / "out" / "task"
    unpack(tmp_path / "store" / "pack.tar", target)
    assert digest_tree(target) == digest_tree(root)
    assert str((target / "link").readlink()) == "sub/a.txt"
    assert os.access(target / "sub" / "deep" / "run.sh", os.X_OK)
    assert [path.name for path in target.parent.iterdir()] == ["task"]


def test_unpacking_over_what_is_there_changes_nothing(tmp_path: Path) -> None:
    write_pack(tree(tmp_path / "one"), tmp_path / "pack.tar")
    target = tmp_path / "out"
    unpack(tmp_path / "pack.tar", target)
    (target / "mark").write_text("kept")
    unpack(tmp_path / "pack.tar", target)
    assert (target / "mark").exists()


@pytest.mark.parametrize("where", ["/etc/passwd", "../outside", "sub/../../outside", "missing/../../.."])
def test_a_link_out_of_the_directory_is_refused_by_name(tmp_path: Path, where: str) -> None:
    root = tree(tmp_path / "one")
    (tmp_path / "outside").write_text("secret")
    (root / "sub" / "deep" / "bad").symlink_to(where if where.startswith("/") else f"../../{where}")
    for attempt in (digest_tree, lambda path: write_pack(path, tmp_path / "pack.tar")):
        with pytest.raises(TaskError, match="leads out of the directory") as caught:
            attempt(root)
        assert caught.value.file == str(root / "sub" / "deep" / "bad")
    assert not list(tmp_path.glob("*pack.tar*"))


def test_a_link_that_leaves_by_way_of_another_link_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    (root / "up").symlink_to("sub/deep")
    (root / "bad").symlink_to("up/../../../outside")
    with pytest.raises(TaskError, match="leads out"):
        digest_tree(root)


def test_links_that_stay_inside_are_kept_even_when_they_dangle_or_loop(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    (root / "dangling").symlink_to("not-yet-there")
    (root / "loop").symlink_to("loop")
    (root / "absolute").symlink_to(root / "sub" / "a.txt")
    write_pack(root, tmp_path / "pack.tar")
    unpack(tmp_path / "pack.tar", tmp_path / "out")
    assert str((tmp_path / "out" / "dangling").readlink()) == "not-yet-there"
    assert str((tmp_path / "out" / "loop").readlink()) == "loop"
    assert (tmp_path / "out" / "absolute").read_text() == "a"


def test_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    os.mkfifo(root / "pipe")
    with pytest.raises(TaskError, match="neither a file") as caught:
        digest_tree(root)
    assert caught.value.file == str(root / "pipe")


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is not a directory"):
        digest_tree(tmp_path / "nowhere")


def test_a_broken_pack_is_corrupt_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "pack.tar").write_bytes(b"not a tar")
    with pytest.raises(CorruptArtifactError):
        unpack(tmp_path / "pack.tar", tmp_path / "out" / "task")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_pack_that_would_write_elsewhere_is_corrupt(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "pack.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../evil"))
    with pytest.raises(CorruptArtifactError):
        unpack(tmp_path / "pack.tar", tmp_path / "out" / "task")


def test_a_target_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        write_pack(root, tmp_path / "file" / "pack.tar")
