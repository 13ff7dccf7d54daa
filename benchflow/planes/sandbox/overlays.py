"""The changes in an overlay file system, read from its layers on this host.

No program of the sandbox runs for this. The upper layers may be written by the sandbox at the same time, so they are
opened with `confined`; the lower ones never change while a sandbox uses them.
"""

# Paths are strings, because a tree has very many of them.
# ruff: noqa: PTH208

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchflow.confined import ConfinedDirectory, DirectoryEntry
from benchflow.contracts.file_changes import FileChanges, FileKind, FileState
from benchflow.errors import SandboxError, UnsafePathError

OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
"""Attributes of a directory that hides its content in the layers below."""

_ELSEWHERE = ("trusted.overlay.redirect", "trusted.overlay.metacopy")
"""Attributes of entries whose content is elsewhere; the engine's sandboxes are mounted without both features."""

_CAPABILITY = "security.capability"
_MAX_FILE = 64 * 1024 * 1024
"""Maximum number of bytes of a file that `read_original` returns."""

_KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}

Files = dict[str, FileState | None]
"""States by absolute path; None for a path that was removed."""


@dataclass
class Overlay:
    """The layers of one overlay."""

    uppers: Sequence[Path]
    """Directories of the layers with changes, topmost first."""

    lowers: Sequence[Path]
    """Directories of the original layers, topmost first."""

    _places: dict[str, list[str]] = field(default_factory=dict)
    """Cache of `_merge_directories`."""

    def find_changes(self, known: Files | None, skip: Sequence[str]) -> Files:
        """Return all differences between the lower layers and the whole, by absolute path.

        Args:
            known: Earlier differences; None for none. If given, no digest is made of files that can't equal their
                earlier state, since nothing is compared with them.
            skip: Paths to leave out, with all that is below them.

        Raises:
            UnsafePathError: An upper layer can't be read: its paths are too long, or there are too many files.
            SandboxError: The overlay uses an unsupported feature.
        """
        found: Files = {}
        for upper in reversed(self.uppers):
            try:
                with ConfinedDirectory(upper) as layer:
                    _Reader(self, layer, found, known, skip).read()
            except (OSError, UnsafePathError) as error:
                why = error.message if isinstance(error, UnsafePathError) else error.strerror
                raise UnsafePathError(
                    f"what was changed in the sandbox cannot be compared: {why}",
                    remedy="see what the agent left there: such a tree of files is no result of honest work",
                ) from error
        return {escape_name(path): state for path, state in found.items() if not self._is_unchanged(path, state)}

    def find_original(self, path: str, *, is_read: bool = False) -> FileState | None:
        """Return the state of a path in the lower layers; None if nothing is there.

        Args:
            path: Absolute path without symbolic links.
            is_read: Whether to include the digest of a file's content.
        """
        place = self._find_place(path.rstrip("/"))
        if place is None:
            return None
        status = os.lstat(place)
        capability = _read_attribute(place, _CAPABILITY).hex() if stat.S_ISREG(status.st_mode) else ""
        state = make_state(status, target=lambda: str(Path(place).readlink()), capability=capability)
        if is_read and state.kind == "file":
            with open(place, "rb") as file:  # noqa: PTH123
                state = state.model_copy(update={"digest": compute_digest(file)})
        return state

    def read_original(self, path: str) -> bytes | None:
        """Return the content of a file in the lower layers; None if it is no regular file, or has more than 64 MiB.

        Args:
            path: Absolute path without symbolic links.
        """
        place = self._find_place(path.rstrip("/"))
        if place is None or not stat.S_ISREG((status := os.lstat(place)).st_mode) or status.st_size > _MAX_FILE:
            return None
        return Path(place).read_bytes()

    def list_names(self, path: str) -> set[str]:
        """Return the names in a directory of the lower layers."""
        names: set[str] = set()
        hidden: set[str] = set()
        for directory in self._merge_directories(path.rstrip("/")):
            for name in os.listdir(directory):
                if name not in names and name not in hidden:
                    is_gone = is_whiteout(os.lstat(f"{directory}/{name}"))
                    (hidden if is_gone else names).add(name)
        return names

    def _is_unchanged(self, path: str, state: FileState | None) -> bool:
        """Return whether a state is equal to that in the lower layers."""
        before = self.find_original(path)
        if state is None or before is None:
            return state is before
        if state.kind != "file" or before.kind != "file" or state.model_copy(update={"digest": ""}) != before:
            return state == before
        return bool(state.digest) and self.find_original(path, is_read=True) == state

    def _find_place(self, path: str) -> str | None:
        """Return the path on this host of a path in the lower layers; None if nothing is there."""
        parent, _, name = path.rpartition("/")
        if not name:
            return str(self.lowers[0]) if self.lowers else None
        for directory in self._merge_directories(parent):
            place = f"{directory}/{name}"
            try:
                status = os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
            return None if is_whiteout(status) else place
        return None

    def _merge_directories(self, path: str) -> list[str]:
        """Return the directories of lower layers that make up the directory at a path, topmost first."""
        unknown = []
        while path and path not in self._places:
            unknown.append(path)
            path = path.rpartition("/")[0]
        found = self._places[path] if path else [str(lower).rstrip("/") for lower in self.lowers]
        # No recursion: an agent may nest directories deeper than Python's stack allows.
        for below in reversed(unknown):
            found = self._places[below] = self._enter(found, below.rpartition("/")[2])
        return found

    def _enter(self, directories: Sequence[str], name: str) -> list[str]:
        """Return the directories that make up a subdirectory of a directory which these make up."""
        found = []
        for directory in directories:
            place = f"{directory}/{name}"
            try:
                status = os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(status.st_mode):
                break
            found.append(place)
            if any(_read_attribute(place, name) == b"y" for name in OPAQUE):
                break
        return found


@dataclass
class _Reader:
    """Adds the changes of one upper layer to those of the layers below it."""

    overlay: Overlay
    layer: ConfinedDirectory
    found: Files
    known: Files | None
    skip: Sequence[str]
    _earlier: list[str] = field(init=False)
    """Paths that layers below it have changed, sorted."""

    def __post_init__(self) -> None:
        self._earlier = sorted(self.found)

    def read(self) -> None:
        """Add the changes of the layer to `found`."""
        # Directories that hide those of the layers below.
        alone: set[str] = set()
        present: dict[str, set[str]] = {}
        for entry in self.layer.entries(skip=lambda name: is_below(f"/{name}", self.skip)):
            path = f"/{entry.name}"
            parent, _, name = path.rpartition("/")
            if parent in alone:
                present[parent].add(name)
            if is_whiteout(entry.status):
                self._forget_below(path)
                self.found[path] = None
                continue
            if entry.is_directory:
                if parent in alone or self._is_opaque(entry):
                    self._forget_below(path)
                    alone.add(path)
                    present[path] = set()
            else:
                self._forget_below(path)
            try:
                self.found[path] = self._read_state(entry)
            except FileNotFoundError:
                # Removed since it was listed, by a process that still runs; it is compared again after that has ended.
                self.found.pop(path, None)
        for path, names in present.items():
            gone = self.overlay.list_names(path) - names
            self.found |= {f"{path}/{name}": None for name in gone if not is_below(f"{path}/{name}", self.skip)}

    def _forget_below(self, path: str) -> None:
        """Remove changes of the layers below this one that are below a path."""
        below = f"{path}/"
        for place in range(bisect_left(self._earlier, below), len(self._earlier)):
            if not self._earlier[place].startswith(below):
                break
            self.found.pop(self._earlier[place], None)

    def _is_opaque(self, entry: DirectoryEntry) -> bool:
        """Return whether a directory hides those of the layers below. Raises `SandboxError` for a redirect."""
        attributes = self.layer.attributes(entry.name)
        if any(name in attributes for name in _ELSEWHERE):
            raise SandboxError(
                "is kept in another place of its layer, which is not supported",
                file=f"/{entry.name}",
                remedy="mount overlays with redirect_dir=off,metacopy=off",
            )
        return any(attributes.get(name) == b"y" for name in OPAQUE)

    def _read_state(self, entry: DirectoryEntry) -> FileState:
        """Return the state of an entry, with a digest if the file may equal an earlier state."""
        if not entry.is_file:
            return make_state(entry.status, target=lambda: self.layer.read_link(entry.name))
        path = f"/{entry.name}"
        with self.layer.open(entry.name) as file:
            status = os.fstat(file.fileno())
            try:
                capability = os.getxattr(file.fileno(), _CAPABILITY).hex()
            except OSError:
                capability = ""
            state = make_state(status, capability=capability)
            if self._needs_digest(path, state):
                state = state.model_copy(update={"digest": compute_digest(file)})
        return state

    def _needs_digest(self, path: str, state: FileState) -> bool:
        """Return whether a file may equal its earlier state, which only its digest can tell."""
        if self.known is None:
            return True
        name = escape_name(path)
        before = self.known[name] if name in self.known else self.overlay.find_original(path)
        return before is not None and before.kind == "file" and before.size == state.size


async def list_changes(base: str, overlay: Overlay, known: FileChanges | None, skip: Sequence[str]) -> FileChanges:
    """Return the files that differ from an image, as `ListsChanges.changes` does.

    Args:
        base: Id of the image.
        overlay: Layers of the image and of the sandbox.
        known: Earlier changes; None for none.
        skip: Paths to leave out, with all that is below them.
    """
    files = known.files if known is not None else None
    return FileChanges(base=base, files=await asyncio.to_thread(overlay.find_changes, files, skip))


async def read_originals(overlay: Overlay, paths: Sequence[str]) -> dict[str, FileState]:
    """Return an image's files at these paths, with digests, as `ListsChanges.originals` does, without missing ones."""

    def read() -> dict[str, FileState]:
        found = {path: overlay.find_original(path, is_read=True) for path in paths}
        return {path: state for path, state in found.items() if state is not None}

    return await asyncio.to_thread(read)


def make_state(status: os.stat_result, *, target: Callable[[], str] = lambda: "", capability: str = "") -> FileState:
    """Return the state of a file from its status, without a digest.

    Args:
        status: Result of `lstat`.
        target: Returns the target of a symbolic link; called only for one.
        capability: Capabilities of a program, in hex.
    """
    kind = _KINDS[stat.S_IFMT(status.st_mode)]
    size = {"file": status.st_size, "device": status.st_rdev}.get(kind, 0)
    mode = 0 if kind == "link" else stat.S_IMODE(status.st_mode)
    text = escape_name(target()) if kind == "link" else ""
    return FileState(
        kind=kind, mode=mode, uid=status.st_uid, gid=status.st_gid, size=size, target=text, capability=capability
    )


def is_below(path: str, places: Sequence[str]) -> bool:
    """Return whether a path is one of these places, or below one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def escape_name(name: str) -> str:
    """Return a name with escapes for bytes that are not UTF-8, which JSON could not hold."""
    return os.fsencode(name).decode(errors="backslashreplace")


def compute_digest(file: IO[bytes]) -> str:
    """Return the SHA-256 of an open file's content, in hex."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether an entry of a layer marks a removed file (a character device 0:0)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _read_attribute(place: str, name: str) -> bytes:
    """Return an extended attribute of a lower layer's file; empty if it has none."""
    try:
        return os.getxattr(place, name, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
            raise
        return b""
