"""A mask as data: an overlay layer of whiteouts, opaque directories and generated files, and how it is assembled.

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
"""Kind of an entry: whiteouts and opaque directories hide what the host has there."""

OPAQUE = "trusted.overlay.opaque"
"""Attribute of a directory that hides the content of the layers below."""
MAX_LINKS = 40
"""Maximum number of links that are followed, as in the kernel."""


@dataclass(frozen=True)
class MaskEntry:
    """One path of a mask."""

    path: str
    """The path."""
    kind: Kind
    """Its kind. `directory` shows what lies below and only carries mode and owner, because an overlay takes those of a
    merged directory from the uppermost layer that has it.
    """
    mode: int = 0o755
    """Permission bits."""
    uid: int = 0
    """Owner."""
    gid: int = 0
    """Group."""
    content: bytes = b""
    """Content of a file, or the target of a link."""

    @property
    def hides(self) -> bool:
        """Return whether it hides what the host has there."""
        return self.kind in ("whiteout", "opaque")


@dataclass(frozen=True)
class Mask:
    """A layer that lies above `/`."""

    entries: tuple[MaskEntry, ...]
    """Entries, parents before their children; the first is the root itself."""

    @cached_property
    def key(self) -> str:
        """Return a hex digest of its content."""
        total = hashlib.sha256()
        for entry in self.entries:
            head = f"{entry.path}\0{entry.kind}\0{entry.mode:o}\0{entry.uid}\0{entry.gid}\0{len(entry.content)}\0"
            total.update(os.fsencode(head) + entry.content)
        return total.hexdigest()

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Return the paths of entries that hide what the host has at and below them."""
        return frozenset(entry.path for entry in self.entries if entry.hides)

    def covers(self, path: str) -> bool:
        """Return whether nothing of the host is seen at or below `path`."""
        return any(part in self.hidden for part in (path, *list_ancestors(path)))

    def write(self, target: Path) -> None:
        """Write the layer into an existing, empty directory, as root.

        Raises:
            DiskFullError: No space is left.
            SandboxUnavailableError: The filesystem has no `trusted.*` attributes, or this process lacks the rights.
            SandboxError: Any other error of the filesystem.
        """
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


def _make(entry: MaskEntry, path: str) -> None:
    """Create an entry at a path."""
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
    """A mask in the making.

    Args:
        root: Root directory of the host.
        below: Mask that lies under this one; None for none.
    """

    def __init__(self, root: Path, below: Mask | None = None) -> None:
        """Make it."""
        self.root = root
        self._below = below
        self._entries: dict[str, MaskEntry] = {}

    def add(self, entry: MaskEntry) -> None:
        """Add an entry, in place of one of the same path."""
        self._entries[entry.path] = entry

    def hide(self, path: str) -> None:
        """Add a whiteout, whether the host has something there or not, unless the path is hidden already."""
        if not self.covers(path):
            self.add(MaskEntry(path, "whiteout", 0))

    def empty(self, path: str, status: os.stat_result) -> None:
        """Add an opaque directory with the mode and owner in `status`, unless the path is hidden already."""
        if not self.covers(path):
            self.add(MaskEntry(path, "opaque", stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid))

    def covers(self, path: str) -> bool:
        """Return whether nothing of the host is seen at or below `path`, by this mask or the one below."""
        if self._below is not None and self._below.covers(path):
            return True
        found = (self._entries.get(part) for part in (path, *list_ancestors(path)))
        return any(entry.hides for entry in found if entry)

    def hides(self, path: str) -> bool:
        """Return whether this very path is hidden by an entry of its own."""
        return path in self._entries and self._entries[path].hides

    def whole(self, path: str) -> str:
        """Return a path on the host, as a string, because this is called thousands of times."""
        return f"{self.root}/{path}"

    def finish(self) -> Mask | None:
        """Return the mask, without needless entries and with all parents; None if it is empty."""
        kept = {path: entry for path, entry in self._entries.items() if not self._needless(entry)}
        if not kept:
            return None
        for path in list(kept):
            for parent in list_ancestors(path):
                if parent not in kept:
                    kept[parent] = self._directory(parent)
        if "" not in kept:
            kept[""] = self._directory("")
        return Mask(tuple(kept[path] for path in sorted(kept, key=lambda path: path.split("/") if path else [])))

    def _needless(self, entry: MaskEntry) -> bool:
        """Return whether an entry lies below a whiteout, or hides something that is hidden already."""
        holders = [self._entries[part] for part in list_ancestors(entry.path) if part in self._entries]
        return any(holder.kind == "whiteout" or (holder.hides and entry.hides) for holder in holders)

    def _directory(self, path: str) -> MaskEntry:
        """Return an entry with the mode and owner of the host's directory."""
        try:
            status = os.lstat(self.whole(path))
        except FileNotFoundError:
            return MaskEntry(path, "directory")
        return MaskEntry(path, "directory", stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def list_ancestors(path: str) -> list[str]:
    """Return the directories that hold a path, the nearest first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def list_places(root: Path, path: Path) -> list[str]:
    """Return the paths in `root` by which an absolute path is reached: links at its end, and the path behind all links.

    Raises:
        ConfigError: The path is not absolute.
    """
    if not path.is_absolute():
        raise ConfigError("a path to hide from sandboxes is not absolute", file=str(path), remedy="give it from / on")
    links: list[str] = []
    rest = _split(str(path))
    at: list[str] = []
    for _ in range(MAX_LINKS):
        met = _follow(root, at, rest)
        if met is None:
            return [*links, "/".join(at)]
        if not rest:
            links.append("/".join([*at, met[0]]))
        at[:], rest = ([] if met[1].startswith("/") else at), [*_split(met[1]), *rest]
    return links  # a loop: nothing lies behind it


def _follow(root: Path, at: list[str], rest: list[str]) -> tuple[str, str] | None:
    """Move components from `rest` to `at` up to the next link, and return its name and target; None at the end."""
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


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def find_first_missing(root: Path, path: str) -> str | None:
    """Return the first part of a path that does not exist, else the path; None if it lies below a file."""
    for part in [*reversed(list_ancestors(path)), path]:
        try:
            status = os.lstat(f"{root}/{part}")
        except FileNotFoundError:
            return part
        if part != path and not stat.S_ISDIR(status.st_mode):
            return None
    return path


def list_names(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory of the host; none if it has vanished, or is no directory."""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
