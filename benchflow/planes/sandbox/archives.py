"""Archives on this host: packing what goes into a sandbox, unpacking what comes out.

Nothing that a sandbox sends is trusted: `unpack` writes below its target and nowhere else, whatever the archive
says.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from benchflow.errors import SandboxError


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a relative path, or one of its names, or a directory above it, matches a shell pattern."""
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(candidate, pattern.strip("/")) for pattern in patterns for candidate in (*prefixes, *parts)
    )


def pack(source: Path, packed: IO[bytes], owner: tuple[int, int], exclude: Sequence[str], name: str | None) -> None:
    """A directory's content, or one file under `name`, as an archive owned by `owner`."""
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        if name is not None:
            _add(archive, source.resolve(), name, owner)
            return
        for path, relative in _walk(source, exclude):
            _add(archive, path, relative, owner)


def _walk(source: Path, exclude: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for directory, names, files in os.walk(source):
        inside = Path(directory).relative_to(source)
        names[:] = sorted(name for name in names if not excluded((inside / name).as_posix(), exclude))
        for name in [*names, *sorted(files)]:
            relative = (inside / name).as_posix()
            if not excluded(relative, exclude):
                yield Path(directory) / name, relative


def _add(archive: tarfile.TarFile, path: Path, name: str, owner: tuple[int, int]) -> None:
    info = archive.gettarinfo(path, arcname=name)
    # Sockets come as None; pipes and devices have no business in a sandbox.
    if info is None or not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
        return
    info.uid, info.gid = owner
    info.uname = info.gname = ""
    if info.islnk():
        # A second name of a file: packed as a file of its own, since the first may be excluded.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isfile():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def entry(name: str, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    """The header of a file that exists only in memory."""
    info = tarfile.TarInfo(name)
    info.mode = mode
    info.uid, info.gid = owner
    return info


def unpack(packed: IO[bytes], target: Path, exclude: Sequence[str], single: bool) -> None:
    """Write an archive's files below `target` (or, if `single`, its one file as `target`).

    Left out: devices, pipes, absolute paths, paths with `..`, and links that do not lead to a place below
    `target`. Nothing is written through a link.
    """
    try:
        with tarfile.open(fileobj=packed, mode="r|*") as archive:
            if single:
                _unpack_single(archive, target)
            else:
                target.mkdir(parents=True, exist_ok=True)
                _unpack_tree(archive, target, exclude)
    except tarfile.TarError as error:
        raise SandboxError(f"the sandbox sent a broken archive: {error}", file=str(target)) from error


def _unpack_single(archive: tarfile.TarFile, target: Path) -> None:
    for member in archive:
        if member.isreg():
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(archive, member, target)
            return


def _unpack_tree(archive: tarfile.TarFile, target: Path, exclude: Sequence[str]) -> None:
    links: list[tuple[Path, str]] = []
    for member in archive:
        parts = [part for part in PurePosixPath(member.name).parts if part != "."]
        if not parts or member.name.startswith("/") or ".." in parts or excluded("/".join(parts), exclude):
            continue
        place = target.joinpath(*parts)
        if not _real_directory(target, parts[:-1]):
            continue
        if member.isdir():
            _real_directory(target, parts)
        elif member.isreg():
            _write(archive, member, place)
        elif member.issym():
            links.append((place, member.linkname))
        elif member.islnk():
            _copy_linked(target, member.linkname, place)
    for place, leads_to in links:
        _link(target, place, leads_to)
    # A link may lead through another one, so where each really leads is known only now.
    root = target.resolve()
    for place, _ in links:
        if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(root):
            place.unlink()


def _real_directory(target: Path, parts: Sequence[str]) -> bool:
    """Make a directory below target, step by step, so that no step is a link."""
    place = target
    for part in parts:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return False
        place.mkdir(exist_ok=True)
    return True


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    content = archive.extractfile(member)
    if content is None or (place.is_dir() and not place.is_symlink()):
        return
    place.unlink(missing_ok=True)
    with content, place.open("xb") as file:
        shutil.copyfileobj(content, file, 1024 * 1024)
    place.chmod((member.mode & 0o777) | 0o600)
    with contextlib.suppress(OSError, OverflowError):
        os.utime(place, (member.mtime, member.mtime))


def _copy_linked(target: Path, name: str, place: Path) -> None:
    parts = [part for part in PurePosixPath(name).parts if part != "."]
    if name.startswith("/") or ".." in parts or not _real_directory(target, parts[:-1]):
        return
    original = target.joinpath(*parts)
    if original.is_file() and not original.is_symlink() and not place.exists():
        shutil.copy2(original, place, follow_symlinks=False)


def _link(target: Path, place: Path, leads_to: str) -> None:
    """Make a link that, read as text, stays below target."""
    below = Path(os.path.normpath(place.parent.relative_to(target) / leads_to))
    if below.is_absolute() or below.parts[:1] == ("..",) or place.exists() or place.is_symlink():
        return
    place.symlink_to(leads_to)
