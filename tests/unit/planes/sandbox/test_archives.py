"""What a hostile archive can and cannot do to this host."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest

from benchflow.archive_reader import ArchiveLimits
from benchflow.errors import SandboxError, UnsafePathError
from benchflow.planes.sandbox.archives import ArrivingArchive, is_excluded, unpack
from benchflow.planes.sandbox.cancellation import StoppedError


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
    unpack(archive(*members), target, (), single=False, stop=threading.Event())
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
    unpack(archive(("l/out", FILE, None), ("f", FILE, None)), target, (), single=False, stop=threading.Event())
    assert list((tmp_path / "outside").iterdir()) == []
    assert (target / "f").read_text() == "evil" and not (target / "f").is_symlink()


def test_special_mode_bits_are_dropped(tmp_path: Path):
    unpack(archive(("f", FILE, None)), tmp_path / "target", (), single=False, stop=threading.Event())
    assert (tmp_path / "target" / "f").stat().st_mode & 0o7777 == 0o777


def test_a_broken_archive_is_a_typed_error(tmp_path: Path):
    with pytest.raises(SandboxError, match="broken archive"):
        unpack(
            io.BytesIO(b"not an archive at all" * 100), tmp_path / "target", (), single=False, stop=threading.Event()
        )


LIMITS = ArchiveLimits(size=100, entries=70, depth=64)


def deep(parts: int) -> io.BytesIO:
    return archive(*(("/".join("d" * (depth + 1)), DIR, None) for depth in range(parts)))


def sparse(size: int) -> io.BytesIO:
    """A file of one hole, as GNU tar packs it."""
    info = tarfile.TarInfo("holes")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "holes",
        "GNU.sparse.realsize": str(size),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        no_data = b"1\n0\n0\n".ljust(tarfile.BLOCKSIZE, b"\0")
        info.size = len(no_data)
        made.addfile(info, io.BytesIO(no_data))
    packed.seek(0)
    return packed


@pytest.mark.parametrize(
    ("packed", "what"),
    [
        pytest.param(partial(deep, 65), "deeper than 64", id="deep"),
        pytest.param(lambda: archive(*((f"d{n}", DIR, None) for n in range(71))), "more than 70 members", id="many"),
        pytest.param(lambda: sparse(1 << 60), "more than 100 bytes", id="holes"),
        pytest.param(
            lambda: archive(("f", FILE, None), *((f"h{n}", HARD, "f") for n in range(9))), None, id="names of one file"
        ),
    ],
)
def test_what_would_fill_the_disk_is_refused(tmp_path: Path, packed, what: str | None):
    unpack_some = partial(unpack, packed(), tmp_path / "target", (), single=False, stop=threading.Event())
    if what is None:
        unpack_some(limits=LIMITS)
        with pytest.raises(UnsafePathError, match="more than 20 bytes"):
            unpack(packed(), tmp_path / "again", (), False, threading.Event(), ArchiveLimits(size=20))
        return
    with pytest.raises(UnsafePathError, match=what) as caught:
        unpack_some(limits=LIMITS)
    assert caught.value.remedy is not None
    assert sum(path.lstat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= LIMITS.size


def test_as_deep_as_may_be_is_unpacked(tmp_path: Path):
    unpack(deep(64), tmp_path / "target", (), single=False, stop=threading.Event())
    assert len([*(tmp_path / "target").rglob("d")]) == 64


def test_nothing_is_decompressed(tmp_path: Path):
    packed = io.BytesIO(gzip.compress(archive(("f", FILE, None)).getvalue()))
    with pytest.raises(SandboxError, match="broken archive"):
        unpack(packed, tmp_path / "target", (), single=False, stop=threading.Event())


def test_unpacking_ends_when_nobody_wants_it_any_more(tmp_path: Path):
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        unpack(archive(("f", FILE, None)), tmp_path / "target", (), single=False, stop=stop)
    assert not (tmp_path / "target" / "f").exists()


@pytest.mark.parametrize(
    "members",
    [
        [("a", LINK, "x/.."), ("x", LINK, "deep/down"), ("deep/down", DIR, None)],
        [("a/b/x", LINK, "../.."), ("l", LINK, "a/b/x/../secret")],
        [("l", LINK, "\0")],
        [("l", LINK, "")],
    ],
)
def test_a_link_that_goes_up_behind_a_name_is_left_out(tmp_path: Path, members):
    target = tmp_path / "target"
    unpack(archive(*members), target, (), single=False, stop=threading.Event())
    assert not [path for path in target.rglob("*") if path.is_symlink() and path.name in ("a", "l")]


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
    assert is_excluded(path, patterns) is out


# --- archives that are still to come ---------------------------------------------------------------------


def stream(format: int, *files: tuple[str, int]) -> bytes:
    """Return the first bytes of an archive of files of these sizes. The content of the last one is still to come."""
    made = b""
    for name, size in files:
        info = tarfile.TarInfo(name)
        info.size = size
        made += info.tobuf(format=format)
        made += b"x" * (-(-size // 512) * 512) if size < 1_000_000 else b""
    return made


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("piece", [1, 511, 4096])
def test_a_file_with_a_large_hole_is_refused_before_it_is_read(format: int, piece: int) -> None:
    packed = io.BytesIO()
    arriving = ArrivingArchive("/logs/artifacts", packed)
    long = "n" * 300
    data = stream(format, ("small", 700), (long, 10), ("huge", 1_000_000_000_000))
    with pytest.raises(UnsafePathError, match=r"1000000000710 bytes.*'huge'"):
        for at in range(0, len(data), piece):
            arriving.take(data[at : at + piece])
    assert packed.tell() < len(data)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("piece", [100, 513, 1 << 20])
def test_what_arrives_is_what_was_sent(tmp_path: Path, format: int, piece: int) -> None:
    for name, size in (("a", 0), ("b", 511), ("c", 512), ("ä", 5000)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to("a")
    made, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as whole:
        whole.add(tmp_path, "top")
    arriving = ArrivingArchive("/logs/artifacts", packed)
    sent = made.getvalue()
    for at in range(0, len(sent), piece):
        arriving.take(sent[at : at + piece])
    assert packed.getvalue() == sent


def test_a_stream_that_is_no_archive_is_left_to_the_unpacking() -> None:
    packed = io.BytesIO()
    arriving = ArrivingArchive("/logs/artifacts", packed)
    arriving.take(b"no archive" * 1000)
    arriving.take(b"at all" * 1000)
    assert packed.tell() == 16_000
