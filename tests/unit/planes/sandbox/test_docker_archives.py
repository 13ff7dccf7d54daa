"""What a hostile archive can and cannot do to this host."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.archives import excluded, unpack


def archive(*members: tuple[str, bytes, str | None]) -> io.BytesIO:
    """(name, type, link name); a regular file holds the text `evil`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link or "", 0o6777
            info.size = 4 if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(b"evil") if info.size else None)
    packed.seek(0)
    return packed


FILE, LINK, HARD, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("../out", FILE, None)],
        [("a/../../out", FILE, None)],
        [("/tmp/benchflow-evil", FILE, None)],
        [("l", LINK, "/"), ("l/out", FILE, None)],
        [("l", LINK, ".."), ("l/out", FILE, None)],
        [("d", DIR, None), ("d/l", LINK, "../.."), ("d/l/out", FILE, None)],
        [("a", LINK, "b/.."), ("b", LINK, ".."), ("a/out", FILE, None)],
        [("h", HARD, "../secret")],
        [("h", HARD, "/etc/passwd")],
        [("l", LINK, "../secret"), ("h", HARD, "l")],
        [("c", tarfile.CHRTYPE, None), ("b", tarfile.BLKTYPE, None), ("f", tarfile.FIFOTYPE, None)],
    ],
)
def test_nothing_is_written_or_linked_outside(tmp_path: Path, members):
    (tmp_path / "secret").write_text("secret")
    target = tmp_path / "target"
    unpack(archive(*members), target, (), single=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "target"]
    assert (tmp_path / "secret").read_text() == "secret"
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target.resolve())
        assert path.is_dir() or path.is_file() or path.is_symlink()
        assert path.is_symlink() or path.is_dir() or path.read_text() != "secret"
    assert not Path("/tmp/benchflow-evil").exists()


def test_a_link_that_was_there_before_is_not_written_through(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "l").symlink_to("../outside")
    (target / "f").symlink_to("../outside/file")
    unpack(archive(("l/out", FILE, None), ("f", FILE, None)), target, (), single=False)
    assert list((tmp_path / "outside").iterdir()) == []
    assert (target / "f").read_text() == "evil" and not (target / "f").is_symlink()


def test_special_mode_bits_are_dropped(tmp_path: Path):
    unpack(archive(("f", FILE, None)), tmp_path / "target", (), single=False)
    assert (tmp_path / "target" / "f").stat().st_mode & 0o7777 == 0o777


def test_a_broken_archive_is_a_typed_error(tmp_path: Path):
    with pytest.raises(SandboxError, match="broken archive"):
        unpack(io.BytesIO(b"not an archive at all" * 100), tmp_path / "target", (), single=False)


@pytest.mark.parametrize(
    ("path", "patterns", "out"),
    [
        ("a/b.pyc", ["*.pyc"], True),
        ("a/__pycache__/x", ["__pycache__"], True),
        ("a/b/c", ["a/b"], True),
        ("a/b/c", ["b/c"], False),
        ("ab", ["a"], False),
        ("a/b", [], False),
        ("node_modules/x", ["node_modules/"], True),
    ],
)
def test_what_a_pattern_leaves_out(path, patterns, out):
    assert excluded(path, patterns) is out
