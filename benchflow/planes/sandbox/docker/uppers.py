"""Layers filled past the daemon, by copying what a container has changed, where the daemon's files are this host's.

The daemon makes a layer by packing files, hashing the archive and unpacking it again. What it keeps of all that, in the
storage driver overlay2, is a directory like the one that a container's changes lie in. So here the daemon is given a
layer of its own without any files, whose directory is then filled with a copy. Containers lie over it as over others.

The daemon itself knows such a layer by the archive without files: `docker save` tells no more of it. Which these are,
their image's comment says; `archive` packs one as the daemon would have.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow.planes.sandbox import trees

_COPIED = "copied:"

_DIGEST = "trusted.benchflow.digest"
"""What a layer's archive is known by, beside its directory. "trusted": only root of the whole host sees it."""

_OPAQUE = "trusted.overlay.opaque"

_KEPT = ("security.capability", "system.posix_acl_", "user.")
"""Attributes of files that an archive has."""

_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}

_WHITEOUT = ".wh."
_HIDES_ALL = ".wh..wh..opq"


def may_copy(info: Mapping[str, Any]) -> bool:
    """Whether this process may copy the files of a local daemon as they are. info: what it says of itself."""
    status = dict(info["DriverStatus"] or ())
    # Else what a container has changed is not all in its directory, or named by attributes of another kind.
    whole = status.get("Native Overlay Diff") == "true" and status.get("userxattr", "false") == "false"
    return info["Driver"] == "overlay2" and whole and os.geteuid() == 0


def keeps_images_elsewhere(info: Mapping[str, Any]) -> bool:
    """Whether a daemon keeps its images in containerd's store, not in a storage driver of its own."""
    return str(dict(info["DriverStatus"] or ()).get("driver-type")).startswith("io.containerd.snapshotter")


@dataclass(frozen=True)
class EmptyLayer:
    """The archive of a layer without files that no other image has."""

    archive: bytes = field(default_factory=lambda: _nothing(secrets.token_hex(16)))

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.archive).hexdigest()}"


def _nothing(nonce: str) -> bytes:
    root = tarfile.TarInfo("./")
    root.type, root.mode = tarfile.DIRTYPE, 0o755
    root.pax_headers = {"comment": f"benchflow {nonce}: the files of this layer are in the daemon's directory alone"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(root)
    return packed.getvalue()


def directory_of(described: Mapping[str, Any]) -> Path:
    """What a container has changed, or what the topmost layer of an image has in it, as a daemon describes them."""
    return Path(described["GraphDriver"]["Data"]["UpperDir"])


def fill(layer: Path, container: Path) -> OSError | None:
    """Make the empty directory of a layer what a container's is; why that can't be done, if it can't.

    Nothing may run in the container.
    """
    try:
        # From who may not see such attributes they are hidden: what was deleted would be there again. So ask first.
        os.setxattr(layer.parent, _DIGEST, b"")
        layer.rmdir()
        trees.copy(container, layer, reflink=False)
    except OSError as error:
        # Told, not raised: what the daemon says wrong is an `OSError` too.
        return error
    return None


# --- what an image says ----------------------------------------------------------------------------------


def comment(reference: str, copied: Sequence[int]) -> str:
    """An image's comment. copied: the numbers of its layers that were filled here, from below."""
    return " ".join((reference, *(f"{_COPIED}{number}" for number in copied)))


def copied_numbers(image: Mapping[str, Any]) -> tuple[int, ...]:
    """Which layers of an image were filled here, as its comment has it. image: as the daemon describes it."""
    # Of an image in containerd's store, none is told.
    first, *words = (image.get("Comment") or "").split(" ")
    if not first.startswith("benchflow/"):
        return ()
    return tuple(int(word.removeprefix(_COPIED)) for word in words if word.startswith(_COPIED))


def copied_layers(image: Mapping[str, Any]) -> dict[int, Path]:
    """Where the layers of an image lie that were filled here, by their numbers from below.

    All that the daemon tells of them is without their files. image: as the daemon describes it.
    """
    numbers = copied_numbers(image)
    if not numbers:
        return {}
    told = image["GraphDriver"]["Data"]
    below = told["LowerDir"].split(":") if told.get("LowerDir") else []
    places = [*reversed(below), told["UpperDir"]]
    return {number: Path(places[number]) for number in numbers}


# --- archives --------------------------------------------------------------------------------------------


def archive(layer: Path, target: Path) -> str:
    """Pack the directory of a layer as daemons pack theirs; the archive's digest. Raises `OSError`."""
    linked: dict[int, str] = {}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as packed:
        for path, status in _below(layer):
            name = os.fspath(path.relative_to(layer))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                packed.addfile(tarfile.TarInfo(os.fspath(Path(name).with_name(_WHITEOUT + path.name))))
            elif not stat.S_ISSOCK(status.st_mode):
                _add(packed, path, name, status, linked)
    with target.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    os.setxattr(layer.parent, _DIGEST, digest.encode())
    return digest


def known_digest(layer: Path) -> str | None:
    """The digest of the archive of a layer's directory, where it has been packed before. Raises `OSError`."""
    return os.getxattr(layer.parent, _DIGEST).decode() or None


def _below(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All that is in a directory, each before what is below it, always in the same order."""
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            yield Path(entry.path), entry.stat(follow_symlinks=False)
        waiting += [Path(entry.path) for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]


def _add(packed: tarfile.TarFile, path: Path, name: str, status: os.stat_result, linked: dict[int, str]) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    info.pax_headers = {"mtime": f"{status.st_mtime_ns // 10**9}.{status.st_mtime_ns % 10**9:09}"}
    if not stat.S_ISDIR(status.st_mode) and status.st_ino in linked:
        info.type, info.linkname = tarfile.LNKTYPE, linked[status.st_ino]
        return packed.addfile(info)
    linked[status.st_ino] = name
    info.type = _TYPES[stat.S_IFMT(status.st_mode)]
    for key in os.listxattr(path, follow_symlinks=False):
        if key.startswith(_KEPT):
            value = os.getxattr(path, key, follow_symlinks=False)
            info.pax_headers[f"SCHILY.xattr.{key}"] = value.decode("utf-8", "surrogateescape")
    if stat.S_ISREG(status.st_mode):
        info.size = status.st_size
        with path.open("rb") as content:
            return packed.addfile(info, content)
    if stat.S_ISLNK(status.st_mode):
        info.linkname = os.fspath(path.readlink())
    info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
    packed.addfile(info)
    if stat.S_ISDIR(status.st_mode) and _OPAQUE in os.listxattr(path):
        packed.addfile(tarfile.TarInfo(f"{name}/{_HIDES_ALL}"))
