"""Read tar archives that a sandbox, an agent or a task set wrote. What is done with a member is up to the caller.

An archive of a few kilobytes can declare terabytes: by holes, by compression, by one header that is a gigabyte. So none
is decompressed, what its members unpack to is counted before it is read, and no read is larger than its limit.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple, TypeVar, cast

from benchflow.confined import MAX_DEPTH, MAX_ENTRIES

T = TypeVar("T")

CHUNK = 1024 * 1024

_MAX_HEADER = 1024 * 1024
"""Bytes that are read for one member's headers: names, extended attributes, the map of its holes."""


class ArchiveLimitError(tarfile.ReadError):
    """An archive holds more, or deeper directories, than may be unpacked."""


@dataclass(frozen=True)
class ArchiveLimits:
    """How much one archive may unpack to."""

    size: int
    """Bytes of all files, holes included."""
    entries: int = MAX_ENTRIES
    """Members, of whatever kind."""
    depth: int = MAX_DEPTH
    """Parts of a name."""


class Member(NamedTuple):
    """One member of an archive."""

    info: tarfile.TarInfo
    """Its header, as the archive has it."""
    parts: tuple[str, ...]
    """Of its name, without `.` and empty ones. Empty for the archive's own top directory."""
    leads_out: bool
    """Whether its name is absolute, or has `..` or NUL in it."""
    content: IO[bytes] | None
    """Of a regular file, to be read before the next member."""


def read_archive(file: IO[bytes], limits: ArchiveLimits, check: Callable[[], None] = lambda: None) -> Iterator[Member]:
    """Yield the members of an uncompressed archive.

    Args:
        file: The archive, seekable.
        limits: What it may hold.
        check: Called before each member, and may raise.

    Raises:
        tarfile.TarError: It is no archive, or is broken, or exceeds the limits.
    """
    left = limits.size
    end = 0
    bounded = _BoundedReads(file)
    with bounded.within(_MAX_HEADER):
        opened = _parse(lambda: tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r:"))
    with opened as archive:
        for _ in range(limits.entries + 1):
            check()
            with bounded.within(_MAX_HEADER):
                info = _parse(archive.next)
            if info is None:
                return
            # Python before 3.11.14 takes a size below zero for one that leads back, and would read the same for ever.
            if info.size < 0 or archive.offset <= end:
                raise tarfile.ReadError("a member has a size below zero")
            end = archive.offset
            # It would keep every header until the end.
            archive.members = []  # type: ignore[attr-defined]
            parts = tuple(part for part in info.name.split("/") if part not in ("", "."))
            if len(parts) > limits.depth:
                raise ArchiveLimitError(f"it has directories nested deeper than {limits.depth}")
            left -= info.size if info.isreg() else 0
            if left < 0:
                raise ArchiveLimitError(f"it unpacks to more than {limits.size} bytes")
            leads_out = info.name.startswith("/") or ".." in parts or "\0" in info.name
            yield Member(info, parts, leads_out, archive.extractfile(info) if info.isreg() else None)
    raise ArchiveLimitError(f"it has more than {limits.entries} members")


def _parse(read: Callable[[], T]) -> T:
    """Call a function of tarfile, which raises what its arithmetic raises where a header makes no sense."""
    try:
        return read()
    except (ValueError, OverflowError, RecursionError, LookupError, EOFError) as error:
        raise tarfile.ReadError(f"a header makes no sense: {error}") from error


class _BoundedReads:
    """A file that refuses to be read further than a limit, where there is one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left: int | None = None

    @contextlib.contextmanager
    def within(self, limit: int) -> Iterator[None]:
        self._left = limit
        try:
            yield
        finally:
            self._left = None

    def read(self, size: int = -1) -> bytes:
        if self._left is not None:
            if not 0 <= size <= self._left:
                raise ArchiveLimitError(f"a member has headers of more than {_MAX_HEADER} bytes")
            self._left -= size
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()


def copy_content(source: IO[bytes], target: IO[bytes], check: Callable[[], None] = lambda: None) -> None:
    """Copy the content of a member, calling `check` for each piece of it."""
    while piece := source.read(CHUNK):
        check()
        target.write(piece)
