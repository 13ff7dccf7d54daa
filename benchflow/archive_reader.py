"""Bounded reader of tar archives that a sandbox, an agent or a task set wrote. Members are checked, not extracted.

An archive of a few kilobytes can declare terabytes: by holes, by compression, by one header that is a gigabyte. So no
archive is decompressed, the unpacked size of each member is counted before it is read, and no read is larger than its
limit.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, NamedTuple, TypeVar, cast

from benchflow.confined import MAX_DEPTH, MAX_ENTRIES, MAX_PATH

T = TypeVar("T")

CHUNK = 1024 * 1024
"""Bytes per read of `copy_content`."""

_MAX_HEADER = 1024 * 1024
"""Maximum bytes read for one member's headers: names, extended attributes, the map of its holes."""

_MAX_PAX = 256 * 1024
"""Maximum bytes of a member's extended header. An extended attribute has at most 64 KiB."""

_MAX_GLOBALS = 1000
_LONG_NUMBER = re.compile(rb"[0-9]{512}")
"""Run of digits that makes an extended header invalid: a search for what follows takes the square of its length."""

_RECORD = re.compile(rb"([0-9]{1,7}) [^=\n]+=")


class ArchiveLimitError(tarfile.ReadError):
    """An archive holds more data, more members, or deeper directories than may be unpacked."""


@dataclass(frozen=True)
class ArchiveLimits:
    """Maximum that one archive may unpack to."""

    size: int
    """Total bytes of all files, holes included."""
    entries: int = MAX_ENTRIES
    """Number of members of any kind."""
    depth: int = MAX_DEPTH
    """Number of parts in a member's name."""


class Member(NamedTuple):
    """One member of an archive."""

    info: tarfile.TarInfo
    """Its header, as the archive has it."""
    parts: tuple[str, ...]
    """Parts of its name, without `.` and empty ones. Empty for the archive's own top directory."""
    leads_out: bool
    """Whether its name is absolute, or contains `..` or NUL."""
    content: IO[bytes] | None
    """Content of a regular file, to be read before the next member; None for other kinds."""


def read_archive(file: IO[bytes], limits: ArchiveLimits, check: Callable[[], None] = lambda: None) -> Iterator[Member]:
    """Yield the members of an uncompressed archive.

    Args:
        file: The archive, seekable.
        limits: Maximum that it may hold.
        check: Called before each member; may raise to stop the reading.

    Raises:
        tarfile.TarError: The file is not an archive, is damaged, or exceeds the limits.
    """
    left = limits.size
    end = 0
    bounded = _BoundedReads(file)
    with bounded.within(_MAX_HEADER):
        opened = _parse(partial(tarfile.open, fileobj=cast(IO[bytes], bounded), mode="r:", tarinfo=_CheckedHeader))
    with opened as archive:
        for _ in range(limits.entries + 1):
            check()
            with bounded.within(_MAX_HEADER):
                info = _parse(archive.next)
            if info is None:
                return
            # Python before 3.11.14 seeks backwards for a negative size, and would read the same member for ever.
            if info.size < 0 or archive.offset <= end:
                raise tarfile.ReadError("a member has a size below zero")
            end = archive.offset
            # Global headers are copied for each member.
            if len(archive.pax_headers) > _MAX_GLOBALS:
                raise ArchiveLimitError(f"it has more than {_MAX_GLOBALS} global headers")
            # tarfile would retain every header until the end.
            archive.members = []  # type: ignore[attr-defined]
            parts = tuple(part for part in info.name.split("/") if part not in ("", "."))
            if len(parts) > limits.depth:
                raise ArchiveLimitError(f"it has directories nested deeper than {limits.depth}")
            if len(info.name.encode("utf-8", "surrogatepass")) > 2 * MAX_PATH:
                raise ArchiveLimitError(f"it has a name of more than {2 * MAX_PATH} bytes")
            if any(min(start, size) < 0 or start + size > info.size for start, size in _data_ranges(info)):
                raise tarfile.ReadError(f"{info.name!r} has data outside of itself")
            left -= info.size if info.isreg() else 0
            if left < 0:
                raise ArchiveLimitError(f"it unpacks to more than {limits.size} bytes")
            leads_out = info.name.startswith("/") or ".." in parts or "\0" in info.name
            yield Member(info, parts, leads_out, archive.extractfile(info) if info.isreg() else None)
    raise ArchiveLimitError(f"it has more than {limits.entries} members")


def _data_ranges(info: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return the ranges of a sparse file that have data, as offsets and sizes."""
    return cast(list[tuple[int, int]], info.sparse or [])


class _CheckedHeader(tarfile.TarInfo):
    """A header whose extended records are checked before they are parsed.

    Python before 3.11.10 and 3.12.6 believes their lengths (CVE-2024-6232): a header of a megabyte then takes hours, or
    becomes hundreds of gigabytes of keywords that overlap. Later ones check them, too.
    """

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        file = cast(IO[bytes], archive.fileobj)
        start = file.tell()
        if self.size > _MAX_PAX:
            raise ArchiveLimitError(f"a member has extended headers of more than {_MAX_PAX} bytes")
        _check_records(file.read(self.size))
        file.seek(start)
        return cast(tarfile.TarInfo, super()._proc_pax(archive))  # type: ignore[misc]


def _check_records(block: bytes) -> None:
    r"""Raise `tarfile.ReadError` unless a block is `<length> <keyword>=<value>\n`, any number of times."""
    if _LONG_NUMBER.search(block):
        raise tarfile.ReadError("an extended header has a number that is too long")
    at = 0
    while at < len(block) and block[at]:
        match = _RECORD.match(block, at)
        end = at + int(match.group(1)) if match else 0
        if match is None or not match.end() < end <= len(block) or block[end - 1] != ord("\n"):
            raise tarfile.ReadError("an extended header makes no sense")
        at = end


def _parse(read: Callable[[], T]) -> T:
    """Call a function of tarfile, and raise `tarfile.ReadError` for the errors of its arithmetic on invalid headers."""
    try:
        return read()
    except (ValueError, OverflowError, RecursionError, LookupError, EOFError) as error:
        raise tarfile.ReadError(f"a header makes no sense: {error}") from error


class _BoundedReads:
    """File object that limits how many bytes are read within a `within` block."""

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
    """Copy the content of a member in chunks.

    Args:
        source: Content of the member.
        target: File to write to.
        check: Called before each chunk is written; may raise to stop the copy.
    """
    while piece := source.read(CHUNK):
        check()
        target.write(piece)
