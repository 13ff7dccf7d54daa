"""Tar archives on this host: packing files for a sandbox, unpacking those that come from one.

Nothing from a sandbox is trusted: `unpack` writes below its target and nowhere else, whatever the archive contains.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import itertools
import os
import posixpath
import re
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from benchflow.archive_reader import ArchiveLimitError, ArchiveLimits, Member, copy_content, read_archive
from benchflow.confined import ConfinedDirectory
from benchflow.errors import SandboxError, UnsafePathError
from benchflow.planes.sandbox.cancellation import StoppedError

_MAX_EXTENDED = 256 * 1024
"""Maximum number of bytes of an extended header that are searched."""

_PAX_SIZE = re.compile(rb"(?:^|\n)[0-9]{1,7} size=([0-9]{1,19})\n")
"""The size record of an extended header (POSIX pax)."""


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a shell pattern matches a relative path, one of its parts, or a directory above it.

    Args:
        path: Relative path, with `/`.
        patterns: Shell patterns.
    """
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(candidate, pattern.strip("/")) for pattern in patterns for candidate in (*prefixes, *parts)
    )


def pack(source: Path, packed: IO[bytes], owner: tuple[int, int], exclude: Sequence[str], name: str | None) -> None:
    """Write a directory's content, or one file, as a tar archive.

    Pipes, devices and sockets are left out. A hard link becomes a file of its own.

    Args:
        source: The directory or file.
        packed: File to write.
        owner: Uid and gid of all members.
        exclude: Shell patterns of paths to leave out of a directory.
        name: Name of the member if `source` is a single file; None for a directory.
    """
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        if name is not None:
            _add(archive, source.resolve(), name, owner)
            return
        for path, relative in _walk(source, exclude):
            _add(archive, path, relative, owner)


def _walk(source: Path, exclude: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield all paths below a directory that are not excluded, each with its relative name."""
    for directory, names, files in os.walk(source):
        inside = Path(directory).relative_to(source)
        names[:] = sorted(name for name in names if not is_excluded((inside / name).as_posix(), exclude))
        for name in [*names, *sorted(files)]:
            relative = (inside / name).as_posix()
            if not is_excluded(relative, exclude):
                yield Path(directory) / name, relative


def _add(archive: tarfile.TarFile, path: Path, name: str, owner: tuple[int, int]) -> None:
    """Add a file, directory or link to an archive; other kinds are left out."""
    info = archive.gettarinfo(path, arcname=name)
    # `gettarinfo` returns None for sockets; pipes and devices have no use in a sandbox.
    if info is None or not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
        return
    info.uid, info.gid = owner
    info.uname = info.gname = ""
    if info.islnk():
        # A hard link is packed as a file of its own, since the first name may be excluded.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isfile():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def make_header(name: str, mode: int, owner: tuple[int, int], size: int) -> tarfile.TarInfo:
    """Return the header of a file that exists only in memory.

    Args:
        name: Name of the member.
        mode: Permission bits.
        owner: Uid and gid.
        size: Bytes of its content.
    """
    info = tarfile.TarInfo(name)
    info.mode, info.size = mode, size
    info.uid, info.gid = owner
    return info


def pack_bytes(name: str, content: bytes, mode: int, owner: tuple[int, int]) -> IO[bytes]:
    """Return a tar archive with one file, of which only the content exists. See `make_header`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(make_header(name, mode, owner, len(content)), io.BytesIO(content))
    packed.seek(0)
    return packed


DOWNLOAD_LIMIT = 4 * 1024 * 1024 * 1024
"""Maximum number of bytes of one download, packed and unpacked: data from a sandbox must not fill the host's disk."""

LIMITS = ArchiveLimits(size=DOWNLOAD_LIMIT)
"""Default limits of `unpack`."""


def make_size_error(source: str, size: int, largest: str) -> UnsafePathError:
    """Return the error for a download that is too large.

    Args:
        source: Path in the sandbox.
        size: Bytes of its files so far, holes included.
        largest: Name of the largest file.
    """
    return UnsafePathError(
        f"is not downloaded: its files have {size} bytes, and {DOWNLOAD_LIMIT} are allowed; the largest is {largest!r}",
        file=source,
        remedy="let the agent leave less there",
    )


class ArrivingArchive:
    """A tar archive that is being received from a sandbox, refused as soon as its headers declare too much.

    An invalid stream is left to `unpack`, which has limits of its own.
    """

    def __init__(self, source: str, packed: IO[bytes]) -> None:
        """Make it.

        Args:
            source: Path in the sandbox, for the error.
            packed: File to which the archive is written.
        """
        self._source = source
        self._packed = packed
        self._held = bytearray()
        self._skipped = 0
        self._is_readable = True
        self._extended: int | None = None
        self._declared: int | None = None
        self._size = 0
        self._largest = (0, "")

    def take(self, data: bytes) -> None:
        """Write the next bytes of the archive.

        Raises:
            UnsafePathError: The archive is too large, or its headers declare that it will be.
        """
        if self._is_readable:
            self._held += data
            self._read_headers()
        self._packed.write(data)
        if self._packed.tell() > DOWNLOAD_LIMIT:
            raise make_size_error(self._source, self._packed.tell(), self._largest[1])

    def _read_headers(self) -> None:
        """Parse all headers that are complete in the buffer, and drop the bytes of contents."""
        while self._is_readable:
            skipped = min(self._skipped, len(self._held))
            del self._held[:skipped]
            self._skipped -= skipped
            needed = tarfile.BLOCKSIZE if self._extended is None else self._extended
            if self._skipped or len(self._held) < needed:
                return
            block = bytes(self._held[:needed])
            del self._held[:needed]
            if self._extended is None:
                self._read_header(block)
            else:
                # Only an extended header can declare the size of a file of more than 8 GiB.
                found = _PAX_SIZE.search(block)
                self._declared, self._extended = int(found[1]) if found else None, None

    def _read_header(self, block: bytes) -> None:
        """Parse a header, and raise `UnsafePathError` if the declared sizes are too large in all."""
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            # The end of the archive, or an invalid one.
            self._is_readable = False
            return
        padded = -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if info.type == tarfile.XHDTYPE and 0 <= padded <= _MAX_EXTENDED:
            self._extended = padded
            return
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
            self._skipped = max(0, padded)
            return
        size, self._declared = info.size if self._declared is None else self._declared, None
        if info.isreg() and size >= 0:
            self._skipped = -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            self._size += size
            self._largest = max(self._largest, (size, info.name))
            if self._size > DOWNLOAD_LIMIT:
                raise make_size_error(self._source, self._size, self._largest[1])


def unpack(
    packed: IO[bytes],
    target: Path,
    exclude: Sequence[str],
    single: bool,
    stop: threading.Event,
    limits: ArchiveLimits = LIMITS,
) -> None:
    """Write an archive's files below `target` (or, if `single`, its one file as `target`).

    Left out: devices, pipes, absolute paths, paths with `..`, and links that do not lead to a path below `target`.
    Nothing is written through a link.

    Args:
        packed: Seekable archive, not compressed.
        target: Path that the host has chosen. Files there may be the sandbox's, of an earlier download.
        exclude: Shell patterns of paths to leave out.
        single: Whether it is the archive of one file.
        stop: Event that another thread sets to end this early, with `StoppedError`.
        limits: Limits of the archive's content.

    Raises:
        UnsafePathError: It exceeds the limits.
        SandboxError: It is no valid archive.
    """
    work = _Unpacking(target, exclude, stop, limits)
    try:
        if single:
            work.unpack_file(packed)
        else:
            work.unpack_tree(packed)
    except ArchiveLimitError as error:
        raise UnsafePathError(
            f"what the sandbox sent is not unpacked: {error}",
            file=str(target),
            remedy="let the agent leave less there, or leave it out (`exclude` of an artifact)",
        ) from error
    except tarfile.TarError as error:
        raise SandboxError(f"the sandbox sent a broken archive: {error}", file=str(target)) from error


class _Unpacking:
    """The unpacking of one archive below a directory."""

    def __init__(self, target: Path, exclude: Sequence[str], stop: threading.Event, limits: ArchiveLimits) -> None:
        self._target = target
        self._exclude = exclude
        self._stop = stop
        self._limits = limits
        self._linked = 0
        self._links: list[tuple[str, str]] = []

    def unpack_file(self, packed: IO[bytes]) -> None:
        """Write the archive's first file as the target."""
        for member in read_archive(packed, self._limits, self._check):
            if member.content is not None:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                with ConfinedDirectory(self._target.parent) as directory:
                    self._write(directory, self._target.name, member.info, member.content)
                return

    def unpack_tree(self, packed: IO[bytes]) -> None:
        """Write the archive's members below the target."""
        self._target.mkdir(parents=True, exist_ok=True)
        with ConfinedDirectory(self._target) as directory:
            for member in read_archive(packed, self._limits, self._check):
                name = "/".join(member.parts)
                if name and not member.leads_out and not is_excluded(name, self._exclude):
                    # A member below a path that is a link or a file is left out.
                    with contextlib.suppress(UnsafePathError):
                        self._unpack(directory, name, member)
            # Last, so that a link to a directory of the archive does not take the directory's place.
            for name, leads_to in self._links:
                with contextlib.suppress(FileExistsError, UnsafePathError):
                    directory.link(name, leads_to)

    def _unpack(self, directory: ConfinedDirectory, name: str, member: Member) -> None:
        """Write one member, or note its link for the end."""
        info = member.info
        directory.make_directories(name if info.isdir() else posixpath.dirname(name))
        if member.content is not None:
            self._write(directory, name, info, member.content)
        elif info.issym() and _stays_below(posixpath.dirname(name), info.linkname):
            self._links.append((name, info.linkname))
        elif info.islnk() and not directory.has(name):
            self._copy_linked(directory, name, info)

    def _write(self, directory: ConfinedDirectory, name: str, info: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Write a file in place of any that is there."""
        with directory.replacing(name, mode=(info.mode & 0o777) | 0o600) as file:
            copy_content(content, file, self._check)
            file.flush()
            with contextlib.suppress(OSError, OverflowError, ValueError):
                os.utime(file.fileno(), (info.mtime, info.mtime))

    def _copy_linked(self, directory: ConfinedDirectory, name: str, info: tarfile.TarInfo) -> None:
        """Write a hard link as a copy of the file that it names, within the limit of all copies."""
        with contextlib.suppress(FileNotFoundError), directory.open(info.linkname) as original:
            self._linked += os.fstat(original.fileno()).st_size
            if self._linked > self._limits.size:
                raise ArchiveLimitError(f"it unpacks to more than {self._limits.size} bytes")
            self._write(directory, name, info, original)

    def _check(self) -> None:
        """Raise `StoppedError` once the stop event is set."""
        if self._stop.is_set():
            raise StoppedError


def _stays_below(directory: str, text: str) -> bool:
    """Return whether a symbolic link in a directory leads to a path below the top, by its text.

    A `..` after a name is refused: if that name is a link as well, the kernel goes up from where it leads.
    """
    parts = text.split("/")
    up = len(parts) - len([*itertools.dropwhile(lambda part: part in ("..", "."), parts)])
    climbs = parts[:up].count("..")
    return (
        bool(text)
        and not text.startswith("/")
        and ".." not in parts[up:]
        and climbs <= len([*filter(None, directory.split("/"))])
    )
