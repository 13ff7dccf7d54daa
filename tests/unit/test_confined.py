"""A directory whose content is somebody else's: nothing above it, behind a link, or of another kind is opened."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow import confined
from benchflow.confined import ConfinedDirectory, ConfinedPath, open_by_kernel, open_by_steps, open_in_root
from benchflow.errors import UnsafePathError

CANARY = "the canary of this host"


@pytest.fixture(params=[open_by_kernel, open_by_steps])
def root(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(confined, "_choose_opener", lambda: request.param)
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    (tmp_path / "outside" / "canary").write_text(CANARY)
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("own")
    (root / "to_file").symlink_to(tmp_path / "outside" / "canary")
    (root / "to_directory").symlink_to(tmp_path / "outside")
    (root / "a" / "near").symlink_to("file")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    os.mknod(root / "socket", 0o600 | stat.S_IFSOCK)
    if os.geteuid() == 0:
        os.mknod(root / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    return root


OUT = ["/etc/passwd", "..", "../outside/canary", "a/../../outside/canary", "a/..", "\0", "a\0b", "\ud800", "x" * 256]
THROUGH = ["to_directory/canary", "a/file/x", "to_file/x", "a/near/x"]
LEAF = ["to_file", "to_directory", "a/near", "dangling", "pipe", "socket", "a", ".", ""]

USES: dict[str, Callable[[ConfinedDirectory, str], object]] = {
    "open": lambda d, name: d.open(name),
    "open to write": lambda d, name: d.open_descriptor(name, os.O_RDWR),
    "read": lambda d, name: d.read(name, 100),
    "entries": lambda d, name: list(d.entries(name)),
    "status": lambda d, name: d.status(name),
    "create": lambda d, name: d.create(name),
    "replacing": lambda d, name: d.replacing(name).__enter__(),
    "make directories": lambda d, name: d.make_directories(name),
    "set mode": lambda d, name: d.set_mode(name, 0o777),
    "link": lambda d, name: d.link(name, "x"),
    "read link": lambda d, name: d.read_link(name),
    "remove": lambda d, name: d.remove(name),
    "remove tree": lambda d, name: d.remove_tree(name),
    "rename": lambda d, name: d.rename(name, "new"),
    "rename to": lambda d, name: d.rename("a/file", name),
}


@pytest.mark.parametrize("use", USES)
def test_no_name_leads_out_or_through_a_link(root: Path, use: str) -> None:
    with ConfinedDirectory(root) as directory:
        for name in (*OUT, *THROUGH):
            with pytest.raises(UnsafePathError):
                USES[use](directory, name)
            assert not directory.has(name)
    assert (root.parent / "outside" / "canary").read_text() == CANARY


@pytest.mark.parametrize("use", ["open", "open to write", "read"])
def test_only_regular_files_are_opened(root: Path, use: str) -> None:
    with ConfinedDirectory(root) as directory:
        for name in (*LEAF, *(["device"] if os.geteuid() == 0 else [])):
            with pytest.raises(UnsafePathError, match=r"is a |is or leads"):
                USES[use](directory, name)


def test_a_file_is_read_up_to_its_limit(root: Path) -> None:
    with ConfinedDirectory(root) as directory:
        assert directory.read("./a//file", 3) == b"own"
        with pytest.raises(UnsafePathError, match="larger than 2 bytes"):
            directory.read("a/file", 2)
        with pytest.raises(FileNotFoundError):
            directory.read("a/nothing", 2)
    assert ConfinedPath(root, "a/file").read(3) == b"own"
    assert ConfinedPath(root, "a").is_directory() and not ConfinedPath(root, "to_directory").is_directory()
    assert ConfinedPath(root / "nowhere", "a").status() is None


def test_entries_are_listed_without_following_any(root: Path) -> None:
    with ConfinedDirectory(root) as directory:
        found = {entry.name: entry for entry in directory.entries()}
        assert {"a", "a/b", "a/file", "a/near", "to_directory", "pipe"} <= set(found)
        assert not any(name.startswith("to_directory/") for name in found)
        assert found["to_directory"].is_link and found["a"].is_directory and found["a/file"].is_file
        assert [entry.name for entry in directory.entries("a", skip=lambda name: name == "a/b")] == ["a/file", "a/near"]


def test_a_directory_of_too_many_files_is_refused(root: Path) -> None:
    with ConfinedDirectory(root) as directory, pytest.raises(UnsafePathError, match="more than 8 files"):
        list(directory.entries(limit=8))


def test_a_tree_deeper_than_any_path_is_refused_not_followed(root: Path) -> None:
    above = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 100, dir_fd=above)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    with ConfinedDirectory(root) as directory:
        with pytest.raises(UnsafePathError, match=r"deeper|longer"):
            list(directory.entries())
        directory.remove_tree("d" * 100)
        assert not directory.has("d" * 100)


def test_what_is_written_takes_the_place_of_a_link_and_not_of_what_it_leads_to(root: Path) -> None:
    with ConfinedDirectory(root) as directory:
        with directory.replacing("to_file", 0o640) as file:
            file.write(b"new")
        with pytest.raises(UnsafePathError, match="is a directory"), directory.replacing("a") as file:
            file.write(b"new")
        with pytest.raises(FileExistsError):
            directory.create("dangling")
        directory.rename("to_directory", "moved")
        directory.remove("moved")
        directory.remove_tree("a")
        directory.remove_tree("a")
    assert (root / "to_file").read_text() == "new" and (root / "to_file").stat().st_mode & 0o777 == 0o640
    assert (root.parent / "outside" / "canary").read_text() == CANARY
    assert not any(path.name.endswith(".part") for path in root.iterdir())


def test_a_block_that_fails_leaves_the_old_file_and_no_other(root: Path) -> None:
    with ConfinedDirectory(root) as directory, pytest.raises(ZeroDivisionError), directory.replacing("a/file"):
        raise ZeroDivisionError
    assert (root / "a" / "file").read_text() == "own"
    assert sorted(path.name for path in (root / "a").iterdir()) == ["b", "file", "near"]


def test_links_in_a_root_directory_mean_what_they_mean_inside(root: Path) -> None:
    (root / "absolute").symlink_to("/a/file")
    (root / "above").symlink_to("../../../../a/near")
    (root / "proc").symlink_to(f"/proc/self/root{root.parent}/outside/canary")
    handle = os.open(root, os.O_RDONLY)
    try:
        for name in ("absolute", "above", "/a/file"):
            with os.fdopen(open_in_root(handle, name), "rb") as file:
                assert file.read() == b"own"
        for name in ("to_file", "to_directory/canary", "pipe", "proc", "a", "../outside/canary"):
            with pytest.raises(OSError):
                open_in_root(handle, name)
    finally:
        os.close(handle)


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_pipe_in_the_place_of_a_directory_that_is_removed_holds_nobody(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name becomes a pipe after the kernel has said that it is a directory, and before it is opened."""
    target, open_as = root / name, os.open

    def open_late(path: object, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == target.name and not (target.exists() and stat.S_ISFIFO(target.stat().st_mode)):
            target.rename(root / "was")
            os.mkfifo(target)
        return open_as(path, flags, *args, dir_fd=dir_fd)  # type: ignore[arg-type]

    def remove() -> None:
        with ConfinedDirectory(root) as directory, pytest.raises(UnsafePathError):
            directory.remove_tree("a")
        ended.set()

    monkeypatch.setattr(os, "open", open_late)
    ended = threading.Event()
    threading.Thread(target=remove, daemon=True).start()
    assert ended.wait(20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.sampled_from(
            ["a", "b", "..", ".", "", "file", "near", "to_directory", "to_file", "canary", "pipe", "\n", "é"]
        ),
        max_size=6,
    ),
    use=st.sampled_from(["open", "read", "entries", "status", "read link"]),
    separator=st.sampled_from(["/", "//", "/./"]),
)
def test_whatever_the_name_the_canary_is_not_read(root: Path, parts: list[str], use: str, separator: str) -> None:
    with ConfinedDirectory(root) as directory:
        try:
            found = USES[use](directory, separator.join(parts))
        except (UnsafePathError, FileNotFoundError):
            return
        if use == "open":
            with found as file:  # type: ignore[attr-defined]
                assert file.read() == b"own"
        assert CANARY not in repr(found)
        if use == "status":
            # Of a link itself there is a status, also where `.` follows its name.
            above = [part for part in parts if part not in ("", ".")][:-1]
            assert os.path.realpath(root / "/".join(above)).startswith(str(root))
