"""Freeze a directory: equal content has one digest and one archive, wherever and whenever it is packed.

Names, kinds, contents and the executable bit count; owners, times and the rest of the modes don't. Used for
task directories and for build contexts outside of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from benchflow.archive_reader import ArchiveLimits, copy_content, read_archive
from benchflow.confined import MAX_DEPTH, ConfinedDirectory
from benchflow.errors import (
    CorruptArtifactError,
    TaskError,
    UnsafePathError,
)
from benchflow.host_files import create_atomic, raise_storage_errors

SKIPPED_NAMES = frozenset({".git", "__pycache__", ".DS_Store"})
"""Names of files and directories that are never packed: they change without the task changing."""


MAX_BYTES = 64 * 1024**3
"""Maximum size of all files of a pack together. A sparse file may claim a terabyte and take no space on the disk."""


class PackEntry(NamedTuple):
    """A file, directory or link of a pack."""

    name: str
    """POSIX path, relative to the packed directory."""

    path: Path
    """The same path below the packed directory."""

    kind: str
    """`f` for a file, `d` for a directory, `l` for a symbolic link."""

    executable: bool = False
    """Whether a file has an executable bit."""

    target: str = ""
    """Relative target of a link; empty for other kinds."""


def digest_tree(root: Path, *, exclude: Iterable[str] = ()) -> str:
    """Return the SHA-256, in hex, of a directory's content.

    Args:
        root: The directory.
        exclude: Relative paths to leave out.

    Raises:
        TaskError: `root` is no directory, a link leads out of it, an entry can't be read or is a socket, pipe or
            device, or the files exceed `MAX_BYTES`.
    """
    digest = hashlib.sha256()
    with _open_root(root) as directory:
        for entry in list_entries(root, exclude=exclude):
            header = f"{entry.kind}{'x' if entry.executable else '-'} {entry.name}\0{entry.target}\0"
            digest.update(header.encode("utf-8", "surrogateescape"))
            if entry.kind == "f":
                with _open(directory, entry) as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def write_pack(root: Path, target: Path, *, exclude: Iterable[str] = ()) -> None:
    """Write a directory's content to `target` as a tar archive, byte for byte the same for the same content.

    The archive appears at `target` complete or not at all.

    Raises:
        TaskError: As `digest_tree` raises them.
        StoreError: The archive can't be written: `DiskFullError` for want of space.
    """
    with raise_storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            create_atomic(target, mode=0o644) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
            _open_root(root) as directory,
        ):
            for entry in list_entries(root, exclude=exclude):
                _add(tar, directory, entry)


def unpack(pack: Path, target: Path) -> None:
    """Extract a pack into the new directory `target`, completely or not at all. An existing `target` is left as it is.

    Raises:
        CorruptArtifactError: The file isn't a pack.
        StoreError: The directory can't be written: `DiskFullError` for want of space.
    """
    if target.exists():
        return
    with raise_storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            _lay_out(pack, partial)
            partial.chmod(0o755)
            # A process that unpacks at the same time puts the same content there, since `target` is named by its
            # digest.
            if not target.exists():
                partial.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _lay_out(pack: Path, root: Path) -> None:
    """Write the members of a pack below a new directory, none of them through a link.

    Raises `CorruptArtifactError` for a file that is no pack, and for members or links that lead out of the directory.
    """
    try:
        _write_members(pack, root)
    except (tarfile.TarError, UnsafePathError) as error:
        raise CorruptArtifactError(f"is not a pack: {error}", file=str(pack)) from error
    except (FileExistsError, FileNotFoundError) as error:
        # Also raised for a member below a link, and for one that comes before its directory.
        raise CorruptArtifactError(
            "holds a name twice, or in no directory", file=str(pack), key=error.filename
        ) from error


def _write_members(pack: Path, root: Path) -> None:
    links: dict[str, str] = {}
    modes: dict[str, int] = {}
    with pack.open("rb") as file, ConfinedDirectory(root) as directory:
        # A pack is not sparse: its members hold no more bytes than the archive.
        limits = ArchiveLimits(size=os.fstat(file.fileno()).st_size, depth=2 * MAX_DEPTH)
        for member in read_archive(file, limits):
            info, name = member.info, "/".join(member.parts)
            if member.leads_out:
                raise CorruptArtifactError(f"would write outside of its directory, to {info.name}", file=str(pack))
            if info.isdir():
                directory.make_directories(name)
                modes[name] = info.mode & 0o755
            elif info.issym() and name not in links:
                links[name] = info.linkname
            elif member.content is not None:
                with os.fdopen(directory.create(name), "wb") as target:
                    copy_content(member.content, target)
                    os.fchmod(target.fileno(), info.mode & 0o755)
            else:
                raise CorruptArtifactError(f"holds {info.name}, which no pack does", file=str(pack))
        # Links come last, so that nothing is written through one; they are checked when all are there, because the
        # target of one may lead through others.
        for name, leads_to in links.items():
            directory.link(name, leads_to)
        for name in links:
            if not Path(os.path.realpath(root / name)).is_relative_to(os.path.realpath(root)):
                raise CorruptArtifactError(f"holds a link that leads out of it, {name}", file=str(pack))
        for name, mode in modes.items():
            directory.set_mode(name, mode)


def list_entries(root: Path, *, exclude: Iterable[str] = ()) -> Iterator[PackEntry]:
    """Yield the entries of a pack of `root`, parents first, in an order that depends on their names alone.

    Args:
        root: The directory to pack.
        exclude: Relative paths to leave out.

    Raises:
        TaskError: As `digest_tree` raises them.
    """
    excluded = frozenset(str(PurePosixPath(name)) for name in exclude)

    def is_left_out(name: str) -> bool:
        return name in excluded or name.rpartition("/")[2] in SKIPPED_NAMES

    try:
        with _open_root(root) as directory:
            found = sorted(directory.entries(skip=is_left_out), key=lambda each: os.fsencode(each.name).split(b"/"))
            targets = {each.name: directory.read_link(each.name) for each in found if each.is_link}
    except UnsafePathError as error:
        raise TaskError(error.message, file=error.file, remedy="remove it from the directory") from error
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror}", file=str(error.filename or root)) from error
    real_root = Path(os.path.realpath(root))
    left = MAX_BYTES
    for each in found:
        path = root / each.name
        if each.is_link:
            yield PackEntry(each.name, path, "l", target=_resolve_link(path, targets[each.name], real_root))
        elif each.is_directory:
            yield PackEntry(each.name, path, "d")
        elif each.is_file:
            left -= each.status.st_size
            if left < 0:
                raise TaskError(
                    f"makes its directory larger than {MAX_BYTES >> 30} GiB",
                    file=str(path),
                    remedy="remove it, or have a Dockerfile download it",
                )
            yield PackEntry(each.name, path, "f", executable=bool(each.status.st_mode & 0o111))
        else:
            raise TaskError(
                "is neither a file, a directory nor a link",
                file=str(path),
                remedy="remove it from the directory",
            )


def _resolve_link(link: Path, written: str, root: Path) -> str:
    """Return a link's target, made relative. Raise `TaskError` if it resolves to a path outside of `root`."""
    target = Path(written)
    resolved = Path(os.path.realpath(link.parent / target))
    if not resolved.is_relative_to(root):
        raise TaskError(
            f"is a link that leads out of the directory, to {target}",
            file=str(link),
            remedy="copy what it points to into the directory",
        )
    return os.path.relpath(resolved, os.path.realpath(link.parent)) if target.is_absolute() else str(target)


def _add(tar: tarfile.TarFile, directory: ConfinedDirectory, entry: PackEntry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode = 0o755 if entry.executable or entry.kind == "d" else 0o644
    if entry.kind == "d":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif entry.kind == "l":
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
        tar.addfile(info)
    else:
        with _open(directory, entry) as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)


def _open_root(root: Path) -> ConfinedDirectory:
    if not root.is_dir():
        raise TaskError("is not a directory", file=str(root))
    return ConfinedDirectory(root)


def _open(directory: ConfinedDirectory, entry: PackEntry) -> BufferedReader:
    try:
        return directory.open(entry.name)
    except UnsafePathError as error:
        raise TaskError(f"was a file, and {error.message}", file=error.file) from error
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror}", file=str(entry.path)) from error
