"""A mask as data: an overlay layer of whiteouts, opaque directories and generated files, and how it is put together.

Paths are relative to the root, without a leading slash; the empty one is the root itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from benchflow.errors import ConfigError, DiskFullError, SandboxError, SandboxUnavailableError

Kind = Literal["directory", "opaque", "whiteout", "file", "link"]

OPAQUE = "trusted.overlay.opaque"
MOST_LINKS = 40


@dataclass(frozen=True)
class Entry:
    """One path of the layer. content: of a file, or the target of a link.

    `directory` lets what lies below through and only carries its mode and owner, because an overlay takes those of
    a merged directory from the uppermost layer that has it.
    """

    path: str
    kind: Kind
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    content: bytes = b""

    @property
    def hides(self) -> bool:
        return self.kind in ("whiteout", "opaque")


@dataclass(frozen=True)
class Mask:
    """A layer that lies above `/`. entries: parents before what they hold; the first is the root itself."""

    entries: tuple[Entry, ...]

    @cached_property
    def key(self) -> str:
        """Hex digest of all it contains."""
        total = hashlib.sha256()
        for entry in self.entries:
            head = f"{entry.path}\0{entry.kind}\0{entry.mode:o}\0{entry.uid}\0{entry.gid}\0{len(entry.content)}\0"
            total.update(os.fsencode(head) + entry.content)
        return total.hexdigest()

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The paths below which nothing of the host is seen."""
        return frozenset(entry.path for entry in self.entries if entry.hides)

    def covers(self, path: str) -> bool:
        """Whether nothing of the host is seen at or below `path`."""
        return any(part in self.hidden for part in (path, *ancestors(path)))

    def write(self, target: Path) -> None:
        """Make the layer in an existing, empty directory. Needs root, and a filesystem with trusted.* attributes."""
        try:
            for entry in self.entries:
                _make(entry, os.path.join(target, entry.path) if entry.path else str(target))  # noqa: PTH118
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    "the mask of a sandbox cannot be written: no space is left", file=str(target), remedy="free space"
                ) from error
            if error.errno in (errno.EPERM, errno.ENOTSUP):
                raise SandboxUnavailableError(
                    f"the mask that keeps the host's files from sandboxes cannot be made: {error.strerror}",
                    file=str(target),
                    remedy="run as root with a store on ext4, btrfs or xfs, or use --sandbox docker",
                ) from error
            raise SandboxError(f"the mask of a sandbox cannot be written: {error}", file=str(target)) from error


def _make(entry: Entry, path: str) -> None:
    if entry.kind == "whiteout":
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        return
    if entry.kind == "link":
        os.symlink(entry.content, os.fsencode(path))  # noqa: PTH211
        return
    if entry.kind == "file":
        with open(path, "xb") as file:  # noqa: PTH123
            file.write(entry.content)
    elif entry.path:
        os.mkdir(path)  # noqa: PTH102
    if entry.kind == "opaque":
        os.setxattr(path, OPAQUE, b"y")
    os.chown(path, entry.uid, entry.gid)
    os.chmod(path, entry.mode)  # noqa: PTH101


class Draft:
    """A mask in the making. root: of the host; below: the mask that lies under this one."""

    def __init__(self, root: Path, below: Mask | None = None) -> None:
        self.root = root
        self._below = below
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Put an entry, in place of the one that is there."""
        self._entries[entry.path] = entry

    def hide(self, path: str) -> None:
        """A whiteout, whether the host has something there or not."""
        if not self.covers(path):
            self.add(Entry(path, "whiteout", 0))

    def empty(self, path: str, status: os.stat_result) -> None:
        """The host's directory with nothing of what the host has in it."""
        if not self.covers(path):
            self.add(Entry(path, "opaque", stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid))

    def covers(self, path: str) -> bool:
        if self._below is not None and self._below.covers(path):
            return True
        found = (self._entries.get(part) for part in (path, *ancestors(path)))
        return any(entry.hides for entry in found if entry)

    def hides(self, path: str) -> bool:
        """Whether this very path is hidden by an entry of its own."""
        return path in self._entries and self._entries[path].hides

    def whole(self, path: str) -> str:
        """The path on the host, as a string, because this is asked thousands of times."""
        return f"{self.root}/{path}"

    def finish(self) -> Mask | None:
        """The mask; None when there is nothing in it."""
        kept = {path: entry for path, entry in self._entries.items() if not self._needless(entry)}
        if not kept:
            return None
        for path in list(kept):
            for parent in ancestors(path):
                if parent not in kept:
                    kept[parent] = self._directory(parent)
        if "" not in kept:
            kept[""] = self._directory("")
        return Mask(tuple(kept[path] for path in sorted(kept, key=lambda path: path.split("/") if path else [])))

    def _needless(self, entry: Entry) -> bool:
        """Whether it lies below a whiteout, or hides something that is hidden already."""
        holders = [self._entries[part] for part in ancestors(entry.path) if part in self._entries]
        return any(holder.kind == "whiteout" or (holder.hides and entry.hides) for holder in holders)

    def _directory(self, path: str) -> Entry:
        try:
            status = os.lstat(self.whole(path))
        except FileNotFoundError:
            return Entry(path, "directory")
        return Entry(path, "directory", stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def ancestors(path: str) -> list[str]:
    """The directories that hold a path, the nearest first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def places(root: Path, path: Path) -> list[str]:
    """Where in `root` an absolute path lies: the link that it may be, and what it stands for, links followed."""
    if not path.is_absolute():
        raise ConfigError("a path to hide from sandboxes is not absolute", file=str(path), remedy="give it from / on")
    links: list[str] = []
    rest = _parts(str(path))
    at: list[str] = []
    for _ in range(MOST_LINKS):
        met = _follow(root, at, rest)
        if met is None:
            return [*links, "/".join(at)]
        if not rest:
            links.append("/".join([*at, met[0]]))
        at[:], rest = ([] if met[1].startswith("/") else at), [*_parts(met[1]), *rest]
    return links  # a loop: nothing lies behind it


def _follow(root: Path, at: list[str], rest: list[str]) -> tuple[str, str] | None:
    """Go on from `at` up to the next link: its name and target. None when there is none left."""
    while rest:
        name = rest.pop(0)
        if name == "..":
            del at[-1:]
            continue
        try:
            return name, os.readlink("/".join([str(root), *at, name]))  # noqa: PTH115
        except OSError:
            at.append(name)
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def first_missing(root: Path, path: str) -> str | None:
    """The path, or its first part that does not exist; None when a part of it is a file, so that it cannot exist."""
    for part in [*reversed(ancestors(path)), path]:
        try:
            status = os.lstat(f"{root}/{part}")
        except FileNotFoundError:
            return part
        if part != path and not stat.S_ISDIR(status.st_mode):
            return None
    return path


def names_of(directory: str) -> list[os.DirEntry[str]]:
    """The entries of a directory of the host; none when it has gone, or is none."""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
