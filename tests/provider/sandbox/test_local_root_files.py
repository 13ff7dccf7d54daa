"""The files of an image: what layers make of each other, and what a layer of somebody else can't do to this host."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.image_archives import Member, directory, link, member, packed

from benchflow.errors import ImagePullError
from benchflow.planes.sandbox.local.ready.root_files import RootTree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")

OUTSIDE = b"of the host"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that layers are unpacked into. Beside it lies a file of the host's."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(OUTSIDE)
    (tmp_path / "volume" / "u").mkdir(parents=True)
    return tmp_path / "volume" / "u"


def unpack(root: Path, *layers: list[Member], size: int = 1 << 20) -> None:
    with RootTree(root, size) as tree:
        for layer in layers:
            tree.apply(io.BytesIO(packed(layer)))
        tree.finish()


def names(root: Path) -> set[str]:
    """Everything below a directory but for the mount points."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    return found - {"dev", "proc", "sys"}


def test_files_come_with_all_that_they_are(root: Path) -> None:
    when = {"mtime": 1_000_000_000, "uid": 5, "gid": 6}
    capability = {"SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"}
    hidden = {"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.mine": "mine"}
    unpack(
        root,
        [
            directory(".", 0o711),
            member("d", kind=tarfile.DIRTYPE, **{**when, "mode": 0o2750}),
            member("d/program", b"#!", **{**when, "mode": 0o4755}),
            member("d/capable", b"x", pax_headers=capability),
            member("d/noted", b"x", pax_headers=hidden),
            member("d/twice", kind=tarfile.LNKTYPE, linkname="d/program"),
            member("pipe", kind=tarfile.FIFOTYPE, mode=0o600),
            link("l", "/nowhere"),
        ],
    )
    found = (root / "d" / "program").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime) == (0o4755, 5, 6, 1e9)
    assert stat.S_IMODE(root.stat().st_mode) == 0o711
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o2750 and (root / "d").stat().st_mtime == 1e9
    assert (root / "d" / "twice").samefile(root / "d" / "program")
    assert os.listxattr(root / "d" / "capable") == ["security.capability"]
    assert os.listxattr(root / "d" / "noted") == ["user.mine"]
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode) and (root / "l").readlink() == Path("/nowhere")


def test_a_layer_takes_away_and_replaces_what_is_below_it(root: Path) -> None:
    below = [directory("d"), directory("e"), member("f"), member("kind"), directory("other")]
    below += [member(f"{where}/{name}", b"1") for where in ("d", "e", "other") for name in ("one", "two")]
    unpack(
        root,
        below,
        [
            # An opaque directory keeps what its own layer has, wherever the mark stands.
            member("d/mine", b"2"),
            member("d/.wh..wh..opq"),
            member("d/.wh.nothing"),
            member("e/.wh.one"),
            member(".wh.f"),
            member("e/two", b"2"),
            directory("kind"),
            member("other", b"2"),
            member(".wh..wh.plnk"),
            member("away/.wh.file"),
        ],
    )
    assert names(root) == {"d", "d/mine", "e", "e/two", "kind", "other"}
    assert (root / "e" / "two").read_bytes() == b"2" and (root / "kind").is_dir()


def test_a_layer_is_written_through_links_as_a_container_would(root: Path) -> None:
    unpack(
        root,
        [directory("usr"), directory("usr/lib"), link("lib", "usr/lib"), link("far", "/usr")],
        [member("lib/one", b"1"), member("far/lib/two", b"2"), member("lib/.wh.missing")],
    )
    assert names(root / "usr" / "lib") == {"one", "two"} and (root / "lib").is_symlink()


def test_what_each_sandbox_has_of_its_own_is_no_part_of_an_image(root: Path) -> None:
    unpack(
        root,
        [directory("etc"), link("etc/resolv.conf", "/run/resolv.conf"), member("etc/hosts", b"x"), member("etc/mtab")],
        [link("proc", "/outside"), member("sys", b"x"), directory("dev"), member("dev/null", b"x")],
    )
    assert names(root) == {"etc"}
    assert all((root / name).is_dir() and not (root / name).is_symlink() for name in ("dev", "proc", "sys"))


def test_devices_are_left_out_and_hide_nothing(root: Path) -> None:
    devices = [member("disk", kind=tarfile.BLKTYPE, devmajor=8), member("gone", kind=tarfile.CHRTYPE)]
    unpack(root, [member("gone", b"x")], [*devices, member("kept", b"x")])
    assert names(root) == {"gone", "kept"}


ESCAPES: dict[str, list[Member]] = {
    "dots": [member("../../outside/file", b"x")],
    "dots behind a name": [directory("d"), member("d/../../../outside/file", b"x")],
    "absolute": [member("/../../outside/file", b"x")],
    "a link to the host": [link("d", "../../outside"), member("d/file", b"x")],
    "an absolute link": [link("d", "{outside}"), member("d/file", b"x")],
    "a link to a link": [link("a", ".."), link("b", "a/.."), member("b/outside/file", b"x")],
    "a hard link": [member("h", kind=tarfile.LNKTYPE, linkname="../../outside/file"), member("h", b"x")],
    "a hard link through a link": [
        link("d", "../../outside"),
        member("h", kind=tarfile.LNKTYPE, linkname="d/file"),
    ],
    "a whiteout of the directory above": [member(".wh...")],
    "a whiteout of the directory itself": [directory("d"), member("d/.wh..")],
    "a whiteout through a link": [link("d", "../../outside"), member("d/.wh.file")],
    "an opaque directory through a link": [link("d", "../../outside"), member("d/.wh..wh..opq")],
    "a replaced directory": [directory("d"), link("d", "../../outside"), member("d/file", b"x")],
    "the mode of a link": [
        link("l", "../../outside/file"),
        member("l", kind=tarfile.SYMTYPE, linkname="x", mode=0o777),
    ],
}


@pytest.mark.parametrize("kind", sorted(ESCAPES))
@pytest.mark.parametrize("split", [False, True], ids=["one layer", "a layer each"])
def test_no_layer_reaches_out_of_its_directory(root: Path, kind: str, split: bool) -> None:
    outside = root.parent.parent / "outside"
    members = ESCAPES[kind]
    for info in members:
        info.linkname = info.linkname.format(outside=outside)
    before = outside.stat()
    try:
        unpack(root, *([[info] for info in members] if split else [members]))
    except ImagePullError as error:
        assert error.key == "docker_image"
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"file": OUTSIDE}
    assert (outside / "file").stat().st_nlink == 1 and (outside / "file").stat().st_mode & 0o777 == 0o644
    assert (outside.stat().st_mtime, outside.stat().st_ino) == (before.st_mtime, before.st_ino)
    assert {path.name for path in root.parent.iterdir()} == {"u"}


BROKEN: dict[str, Any] = {
    "a file below a file": [member("f"), member("f/g")],
    "a link to nothing": [link("l", "")],
    "a hard link to nothing": [member("h", kind=tarfile.LNKTYPE, linkname="missing")],
    "a hard link to a directory": [directory("d"), member("h", kind=tarfile.LNKTYPE, linkname="d")],
    "a directory behind a link to nothing": [link("l", "missing"), member("l/f")],
    "a name of 300 characters": [member("f" * 300)],
    "a loop": [link("a", "b"), link("b", "a"), member("a/f")],
    "too many directories": [member("/".join(["d"] * 200))],
}


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_layer_that_makes_no_sense_is_refused(root: Path, kind: str) -> None:
    with pytest.raises(ImagePullError, match="a layer of the image cannot be unpacked"):
        unpack(root, BROKEN[kind])


def test_the_size_counts_for_all_layers_together(root: Path) -> None:
    layers = [[member(str(number), b"x" * 1000)] for number in range(3)]
    unpack(root, *layers[:2], size=2500)
    with pytest.raises(ImagePullError, match="unpacks to more than"):
        unpack(root, *layers, size=2500)
