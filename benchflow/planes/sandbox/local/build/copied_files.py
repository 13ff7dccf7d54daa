"""The files that COPY and ADD take from a build context: found by name, digested, and packed for the sandbox."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from benchflow.confined import ConfinedDirectory
from benchflow.planes.sandbox.build_context import Context
from benchflow.planes.sandbox.local.build.syntax import SyntaxMistakeError, UnsupportedSyntaxError

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:", re.I)
_WILD = re.compile(r"[*?\[]")
_ZSTD = b"\x28\xb5\x2f\xfd"
_COMPRESSED: dict[bytes, Callable[[BinaryIO], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_LINKS = 40
"""Maximum number of links that are followed, as in the kernel."""


@dataclass(frozen=True)
class Source:
    """A file or a directory of the context."""

    path: str
    """Path in the context, with links followed."""
    name: str
    """Name by which it was found, before links were followed."""
    directory: bool
    """Whether it is a directory, whose content is copied."""


@dataclass(frozen=True)
class Copy:
    """A copy of files into the image."""

    sources: tuple[Source, ...]
    """Files and directories to copy."""
    target: str
    """Absolute path in the image."""
    into: bool
    """Whether the target is a directory even if there is only one file."""
    owner: str | None
    """`user[:group]`; None for root."""
    mode: int | None
    """Mode of everything; None for the modes in the context."""

    @property
    def directory(self) -> bool:
        """Return whether the target has to be a directory."""
        return self.into or any(source.directory for source in self.sources)


MAX_WILDCARD = 4096
"""Maximum number of characters of a source with wildcards. The time of parsing it grows with their square."""


class Tree:
    """A build context, as COPY sees it.

    Args:
        context: The context.
    """

    def __init__(self, context: Context) -> None:
        """Make it."""
        self.root = context.root
        self._names = set(context.list_copied())
        # An ignored directory is included if some of its content is not ignored.
        self._names |= {str(parent) for name in self._names for parent in PurePosixPath(name).parents}
        self._names.discard(".")

    def find(self, written: str) -> list[Source]:
        """Return the files and directories that a source names; none for a wildcard that matches nothing.

        Raises:
            SyntaxMistakeError: The source is outside of the context, or not in it.
            UnsupportedSyntaxError: The form of the wildcard is not supported.
        """
        path = os.path.normpath(written.lstrip("/") or ".")
        if path.split("/")[0] == "..":
            raise SyntaxMistakeError(f"{written} lies outside of the build context")
        if _WILD.search(path):
            return [self._source(name, written) for name in sorted(self._fitting(path))]
        return [self._source("" if path == "." else path, written)]

    def _fitting(self, path: str) -> Iterator[str]:
        """Yield the paths that match a wildcard, part by part."""
        if "[!" in path or "\\" in path:
            raise UnsupportedSyntaxError(f"the wildcard {path}", "write it with *, ? or [abc]")
        if len(path) > MAX_WILDCARD:
            raise SyntaxMistakeError(f"a wildcard of {len(path)} characters is longer than any path ({MAX_WILDCARD})")
        parts = [re.compile(translate(part.replace("[^", "[!"))) for part in path.split("/")]
        for name in self._names:
            names = name.split("/")
            if len(names) == len(parts) and all(part.match(one) for part, one in zip(parts, names, strict=True)):
                yield name

    def _source(self, path: str, written: str) -> Source:
        """Return the source at a path. Raise `SyntaxMistakeError` if there is none."""
        led = self._resolve(path)
        if led is None:
            shown = written if path in (written, os.path.normpath(written)) or not path else f"{path} ({written})"
            raise SyntaxMistakeError(f"{shown} is not in the build context {self.root}, or .dockerignore leaves it out")
        return Source(led, PurePosixPath(path).name, (self.root / led).is_dir())

    def _resolve(self, path: str) -> str | None:
        """Follow links as if the context were the root directory; None if they lead to no file of the context."""
        todo = list(reversed(PurePosixPath(path).parts))
        at: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "/":
                at = []
            elif part == "..":
                at = at[:-1]
            elif "/".join([*at, part]) not in self._names:
                return None
            elif (place := self.root.joinpath(*at, part)).is_symlink():
                links += 1
                if links > _LINKS:
                    return None
                todo.extend(reversed(PurePosixPath(place.readlink()).parts))
            else:
                at.append(part)
        return "/".join(at)

    def is_archive(self, source: Source) -> bool:
        """Return whether ADD would unpack a source: a tar file, compressed or not, or any zstd file."""
        if source.directory:
            return False
        with ConfinedDirectory(self.root) as directory, directory.open(source.path) as content:
            start = content.read(6)
            content.seek(0)
            if start.startswith(_ZSTD):
                return True
            # Only the first header is decompressed: a few kilobytes may decompress to gigabytes.
            reader = next((unpack for magic, unpack in _COMPRESSED.items() if start.startswith(magic)), None)
            try:
                header = (reader(content) if reader else content).read(tarfile.BLOCKSIZE)
                tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            except (tarfile.TarError, OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
                return False
        return True

    def digest(self, copy: Copy) -> str:
        """Return a hex digest of all that a copy puts into the image: names, modes, links and content."""
        total = hashlib.sha256()
        for name, path in self._entries(copy):
            status = path.lstat()
            total.update(f"\0{name}\0{status.st_mode:o}\0".encode(errors="surrogateescape"))
            if path.is_symlink():
                total.update(os.fsencode(path.readlink()))
            elif path.is_file():
                with path.open("rb") as content:
                    total.update(hashlib.file_digest(content, "sha256").digest())
        return total.hexdigest()

    def pack(self, copy: Copy, packed: IO[bytes], owner: tuple[int, int], name: str | None) -> None:
        """Write a copy as a tar archive.

        Args:
            copy: The copy.
            packed: File to write to.
            owner: Uid and gid of all entries.
            name: Name of a single file in the archive; None for names of their own.
        """
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for own_name, path in self._entries(copy):
                _add(archive, path, name or own_name, owner, copy.mode)

    def _entries(self, copy: Copy) -> Iterator[tuple[str, Path]]:
        """Yield each file and directory of a copy with its name below the target, directories before their content."""
        for source in copy.sources:
            if not source.directory:
                yield source.name, self.root / source.path
                continue
            below = f"{source.path}/" if source.path else ""
            for name in sorted(one for one in self._names if one.startswith(below)):
                yield name.removeprefix(below), self.root / name


def _add(archive: tarfile.TarFile, path: Path, name: str, owner: tuple[int, int], mode: int | None) -> None:
    """Add a file, directory or link to an archive; others are left out."""
    info = archive.gettarinfo(path, arcname=name)
    # `gettarinfo` returns None for sockets; pipes and devices are left out as in every upload.
    if info is None or not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
        return
    info.uid, info.gid = owner
    info.uname = info.gname = ""
    if mode is not None and not info.issym():
        info.mode = mode
    if info.islnk():
        # A hard link to a file that was packed before becomes a file of its own, as it does in an image.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isfile():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def is_remote(source: str) -> bool:
    """Return whether ADD would fetch a source: a URL or a git reference."""
    return _REMOTE.match(source) is not None
