"""Layers that are filled past the daemon, by copying a container's changes, if the daemon's files are on this host.

The daemon makes a layer by packing files, hashing the archive and unpacking it again. The result, in the storage driver
overlay2, is a directory like the one with a container's changes. So the daemon is given a layer without any files,
whose directory is then filled with a copy. Containers use it like any other layer.

The daemon itself knows such a layer by the archive without files: `docker save` has no more of it. The image's comment
says which layers these are; `pack_layer` packs one as the daemon would have.
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

from benchflow.planes.sandbox import directory_trees

_COPIED = "copied:"
"""Prefix of a layer's index in an image's comment."""

_DIGEST = "trusted.benchflow.digest"
"""Attribute of the directory above a layer's: digest of its archive. `trusted` attributes are visible to root of the
initial user namespace only."""

_OPAQUE = "trusted.overlay.opaque"
"""Attribute of a directory that hides those of the layers below."""

_KEPT = ("security.capability", "system.posix_acl_", "user.")
"""Prefixes of the extended attributes that an archive contains."""

_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}

_WHITEOUT = ".wh."
"""Prefix, in an archive, of the name of a removed file."""

_HIDES_ALL = ".wh..wh..opq"
"""Name, in an archive, of the file that makes its directory opaque."""


def may_copy(info: Mapping[str, Any]) -> bool:
    """Return whether this process may copy the files of a daemon on this host as they are.

    It must be root, and the storage driver overlay2 with native diffs: else a container's changes are not all in its
    directory, or are marked by attributes of another kind.

    Args:
        info: The daemon's `info`.
    """
    status = dict(info["DriverStatus"] or ())
    whole = status.get("Native Overlay Diff") == "true" and status.get("userxattr", "false") == "false"
    return info["Driver"] == "overlay2" and whole and os.geteuid() == 0


def uses_containerd_store(info: Mapping[str, Any]) -> bool:
    """Return whether a daemon, by its `info`, keeps images in containerd's store, not in a storage driver."""
    return str(dict(info["DriverStatus"] or ()).get("driver-type")).startswith("io.containerd.snapshotter")


@dataclass(frozen=True)
class EmptyLayer:
    """The archive of a layer without files, which no other image has."""

    archive: bytes = field(default_factory=lambda: _make_empty_archive(secrets.token_hex(16)))
    """The archive, unique by a random comment."""

    @property
    def digest(self) -> str:
        """Return the digest of the archive, as `sha256:…`."""
        return f"sha256:{hashlib.sha256(self.archive).hexdigest()}"


def _make_empty_archive(nonce: str) -> bytes:
    """Return an archive of an empty root directory, with a comment that makes it unique."""
    root = tarfile.TarInfo("./")
    root.type, root.mode = tarfile.DIRTYPE, 0o755
    root.pax_headers = {"comment": f"benchflow {nonce}: the files of this layer are in the daemon's directory alone"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(root)
    return packed.getvalue()


def find_directory(described: Mapping[str, Any]) -> Path:
    """Return the directory with a container's changes, or with an image's topmost layer, from `inspect` data."""
    return Path(described["GraphDriver"]["Data"]["UpperDir"])


def fill_layer(layer: Path, container: Path) -> OSError | None:
    """Replace the empty directory of a layer by a copy of a container's changes. Return the error if that fails.

    Args:
        layer: Directory of the layer.
        container: Directory with the changes of a container, which must be paused.
    """
    try:
        # To a process without the right to `trusted` attributes they are invisible, and deleted files would reappear in
        # the copy. This fails for such a process.
        os.setxattr(layer.parent, _DIGEST, b"")
        layer.rmdir()
        directory_trees.copy_tree(container, layer, reflink=False)
    except OSError as error:
        # Returned, not raised: the library's errors are `OSError` too, and the caller must tell them apart.
        return error
    return None


# --- the comment of an image -----------------------------------------------------------------------------


def format_comment(reference: str, copied: Sequence[int]) -> str:
    """Return the comment of an image.

    Args:
        reference: Name of the image.
        copied: Indices of the layers that were filled past the daemon.
    """
    return " ".join((reference, *(f"{_COPIED}{number}" for number in copied)))


def parse_copied_numbers(image: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the indices of an image's layers that were filled past the daemon, from its comment.

    Args:
        image: `inspect` data of the image.
    """
    # The daemon reports no comment for images in containerd's store.
    first, *words = (image.get("Comment") or "").split(" ")
    if not first.startswith("benchflow/"):
        return ()
    return tuple(int(word.removeprefix(_COPIED)) for word in words if word.startswith(_COPIED))


def find_copied_layers(image: Mapping[str, Any]) -> dict[int, Path]:
    """Return the directories of an image's layers that were filled past the daemon, by index from the bottom up.

    The daemon's own data about them does not include their files.

    Args:
        image: `inspect` data of the image.
    """
    numbers = parse_copied_numbers(image)
    if not numbers:
        return {}
    data = image["GraphDriver"]["Data"]
    below = data["LowerDir"].split(":") if data.get("LowerDir") else []
    places = [*reversed(below), data["UpperDir"]]
    return {number: Path(places[number]) for number in numbers}


# --- archives --------------------------------------------------------------------------------------------


def pack_layer(layer: Path, target: Path) -> str:
    """Pack the directory of a layer as the daemon packs layers, and return the archive's digest.

    The digest is stored as an attribute, for `read_digest`.

    Args:
        layer: Directory of the layer.
        target: File to write.

    Raises:
        OSError: A file can't be read or written.
    """
    linked: dict[int, str] = {}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as packed:
        for path, status in _walk(layer):
            name = os.fspath(path.relative_to(layer))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                packed.addfile(tarfile.TarInfo(os.fspath(Path(name).with_name(_WHITEOUT + path.name))))
            elif not stat.S_ISSOCK(status.st_mode):
                _add(packed, path, name, status, linked)
    with target.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    os.setxattr(layer.parent, _DIGEST, digest.encode())
    return digest


def read_digest(layer: Path) -> str | None:
    """Return the digest of a layer's archive if it was packed before; None otherwise.

    Raises:
        OSError: The attribute can't be read.
    """
    return os.getxattr(layer.parent, _DIGEST).decode() or None


def _walk(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all files below a directory with their status, in a fixed order, each directory before its content."""
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            yield Path(entry.path), entry.stat(follow_symlinks=False)
        waiting += [Path(entry.path) for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]


def _add(packed: tarfile.TarFile, path: Path, name: str, status: os.stat_result, linked: dict[int, str]) -> None:
    """Add a file to an archive, with its attributes; further names of a file become hard links."""
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
