"""Names that change while they are used, as fast as a process can change them: nothing outside is read or touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow import confined
from benchflow.confined import ConfinedDirectory, ConfinedPath, Opener, open_by_kernel, open_by_steps, open_in_root
from benchflow.errors import StoreError, TaskError, UnsafePathError
from benchflow.hosting.portable import _pack_record
from benchflow.paths import RolloutPaths
from benchflow.planes.reward.evidence import _measure_size
from benchflow.planes.reward.judge import list_documents
from benchflow.planes.reward.judge.documents import format_document
from benchflow.secrets import Redactor
from benchflow.tasks import digest_tree, write_pack

CANARY = "the canary of this host"

# Swaps `x` and `d/x` between kinds that lie prepared elsewhere; what was consumed is made anew.
SWAPPER = r"""
import contextlib, itertools, os, shutil, sys
root, stage, outside = sys.argv[1:]
canary = os.path.join(outside, "canary")

def make(kind, place):
    if kind == "file":
        open(place, "w").write("own")
    elif kind == "hard":
        own = place + ".own"
        open(own, "w").write("own")
        os.link(own, place)
        os.unlink(own)
    elif kind == "directory":
        os.makedirs(place + "/y")
        for name in ("f", "canary"):
            open(place + "/" + name, "w").write("own")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        os.symlink({"to_file": canary, "to_directory": outside, "to_above": "../../outside"}[kind], place)

kinds = ("file", "to_file", "directory", "to_directory", "pipe", "hard", "to_above")
for count in itertools.count():
    kind = kinds[count % len(kinds)]
    for target in (root + "/x", root + "/d/x"):
        place = f"{stage}/{kind}-{target.count('/')}"
        with contextlib.suppress(OSError):
            old = f"{stage}/old"
            with contextlib.suppress(OSError):
                os.rename(target, old)
            if not os.path.lexists(place):
                make(kind, place)
            os.makedirs(root + "/d", exist_ok=True)
            os.rename(place, target)
            if os.path.isdir(old) and not os.path.islink(old):
                shutil.rmtree(old)
            elif os.path.lexists(old):
                os.unlink(old)
    if count == 0:
        print("swapping", flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory below which names change all the time; all else must be as it was afterwards."""
    root, stage, outside = tmp_path / "root", tmp_path / "stage", tmp_path / "outside"
    for directory in (root / "d", stage, outside):
        directory.mkdir(parents=True)
    for name in ("canary", "f"):
        (outside / name).write_text(CANARY)
    before = seen(outside)
    words = [sys.executable, "-c", SWAPPER, str(root), str(stage), str(outside)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as swapper:
        try:
            assert swapper.stdout is not None and swapper.stdout.readline() == b"swapping\n"
            yield root
            assert swapper.poll() is None
        finally:
            swapper.kill()
    assert seen(outside) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"root", "stage", "outside", "scratch"}


def seen(directory: Path) -> dict[str, tuple[Any, ...]]:
    return {
        path.name: (path.read_bytes(), status.st_mode, status.st_ino, status.st_mtime_ns, status.st_nlink)
        for path in directory.iterdir()
        if (status := path.lstat())
    } | {".": (directory.stat().st_mode, directory.stat().st_mtime_ns)}


def replace(directory: ConfinedDirectory, name: str) -> None:
    with directory.replacing(name) as file:
        file.write(b"own")


def read_open(directory: ConfinedDirectory, name: str) -> bytes:
    with directory.open(name) as file:
        return file.read()


def read_in_root(directory: ConfinedDirectory, name: str) -> bytes:
    root = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.fdopen(open_in_root(root, name), "rb") as file:
            return file.read()
    finally:
        os.close(root)


def read_pack(directory: ConfinedDirectory, write: Callable[[Path], object]) -> list[bytes]:
    target = directory.path.parent / "scratch"
    write(target)
    try:
        with tarfile.open(target) as archive:
            return [file.read() for member in archive if member.isreg() and (file := archive.extractfile(member))]
    finally:
        target.unlink()


def show_documents(directory: ConfinedDirectory) -> list[str]:
    return [format_document(document) for document in list_documents(ConfinedPath(directory.path))]


def make_and_close(directory: ConfinedDirectory, name: str) -> None:
    directory.remove(name)
    os.close(directory.create(name))


def link(directory: ConfinedDirectory, name: str) -> None:
    directory.remove(name)
    directory.link(name, "/etc/passwd")


USES: dict[str, Callable[[ConfinedDirectory], Any]] = {
    "open": lambda d: read_open(d, "x"),
    "open below": lambda d: read_open(d, "d/x/canary"),
    "open to write": lambda d: os.close(d.open_descriptor("x", os.O_RDWR)),
    "append": lambda d: os.close(d.open_descriptor("d/x", os.O_WRONLY | os.O_APPEND | os.O_TRUNC)),
    "read": lambda d: d.read("d/x", 1000),
    "status": lambda d: d.status("d/x/f").st_size == len(CANARY) and CANARY,
    "has": lambda d: d.has("d/x/f"),
    "entries": lambda d: any(each.is_file and each.status.st_size == len(CANARY) for each in d.entries()) and CANARY,
    "entries below": lambda d: any(each.status.st_size == len(CANARY) for each in d.entries("d/x")) and CANARY,
    "create": lambda d: make_and_close(d, "d/x/new"),
    "replacing": lambda d: replace(d, "x"),
    "replacing below": lambda d: replace(d, "d/x/canary"),
    "make directories": lambda d: d.make_directories("d/x/new/deep"),
    "set mode": lambda d: d.set_mode("d/x", 0o700),
    "link": lambda d: link(d, "d/x/link"),
    "rename": lambda d: d.rename("d/x/f", "x/renamed"),
    "remove": lambda d: d.remove("d/x/canary"),
    "remove tree": lambda d: d.remove_tree("d/x"),
    "in root": lambda d: read_in_root(d, "d/x"),
    "in root below": lambda d: read_in_root(d, "/d/x/canary"),
    "clean": lambda d: Redactor({"KEY": CANARY}).clean_below(d.path),
    "digest": lambda d: digest_tree(d.path),
    "pack": lambda d: read_pack(d, lambda target: write_pack(d.path, target)),
    "record": lambda d: read_pack(d, lambda target: _pack_record(target, RolloutPaths(d.path), "")),
    "documents": show_documents,
    "size": lambda d: _measure_size(ConfinedPath(d.path, "d/x")),
    "later": lambda d: ConfinedPath(d.path, "d/x/canary").read(1000),
}
TRIES = [100, pytest.param(1_000, marks=pytest.mark.long), pytest.param(10_000, marks=pytest.mark.soak)]
"""Of each use: some seconds, a minute, and a quarter of an hour."""

TYPED = (FileNotFoundError, FileExistsError, UnsafePathError, StoreError, TaskError)


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("opener", [open_by_kernel, open_by_steps])
def test_no_use_of_a_name_that_changes_leads_outside(
    root: Path, opener: Opener, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "_choose_opener", lambda: opener)
    succeeded = dict.fromkeys(USES, 0)
    refused = dict.fromkeys(USES, 0)
    with ConfinedDirectory(root) as directory:
        for _ in range(tries):
            for name, use in USES.items():
                try:
                    # `open_in_root` is told by the kernel alone what it finds.
                    with contextlib.suppress(OSError) if name.startswith("in root") else contextlib.nullcontext():
                        assert CANARY not in repr(use(directory)), name
                    succeeded[name] += 1
                except TYPED:
                    refused[name] += 1
    # Else nothing was raced.
    assert sum(map(bool, succeeded.values())) > len(USES) * 0.8, succeeded
    assert sum(map(bool, refused.values())) > len(USES) * 0.5, refused
