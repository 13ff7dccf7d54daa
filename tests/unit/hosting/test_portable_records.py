"""The record of a rollout that goes with a portable checkpoint, laid out on another host."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import CorruptArtifactError
from benchflow.hosting.portable import _extract, _pack_record
from benchflow.paths import RolloutPaths


def test_what_was_written_comes_back_and_what_is_there_stays(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "kept").mkdir(parents=True)
    (here / "trajectory.jsonl").write_text("{}\n")
    (here / "kept" / "run").write_bytes(b"\0\1")
    (here / "kept" / "run").chmod(0o755)
    (here / "kept" / "link").symlink_to("/nowhere")
    (here / "kept" / "near").symlink_to("run")
    _pack_record(tmp_path / "record.tar", RolloutPaths(here), "")
    there.mkdir()
    (there / "trajectory.jsonl").write_text("newer\n")
    for _ in range(2):
        _extract(tmp_path / "record.tar", there)
    assert (there / "trajectory.jsonl").read_text() == "newer\n"
    assert (there / "kept" / "run").read_bytes() == b"\0\1"
    assert (there / "kept" / "run").stat().st_mode & 0o777 == 0o755
    assert str((there / "kept" / "near").readlink()) == "run"


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(
    "evil",
    [
        lambda root: member("../outside"),
        lambda root: member(f"{root.parent}/outside"),
        lambda root: member("link/outside"),
        lambda root: member("pipe", type=tarfile.FIFOTYPE),
        lambda root: member("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    ],
)
def test_one_that_would_write_elsewhere_is_refused(tmp_path: Path, evil: Callable[[Path], tarfile.TarInfo]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with tarfile.open(tmp_path / "record.tar", "w") as archive:
        archive.addfile(evil(root), io.BytesIO())
    with pytest.raises(CorruptArtifactError):
        _extract(tmp_path / "record.tar", root)
    assert not (tmp_path / "outside").exists()
