"""The files of an image, unpacked layer by layer into one directory, as a container of the image would have them.

No layer is trusted. A member is created in its parent directory, which is opened as by a process with this root
directory: a link of the image means what it means in its sandboxes, and leads nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from benchflow.archive_reader import ArchiveLimits, Member, copy_content, read_archive
from benchflow.confined import MAX_DEPTH, open_directory_in_root, remove_directory
from benchflow.errors import ImagePullError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
"""`_WHITEOUT` is the prefix of a name that removes a file of lower layers; `_OPAQUE` removes a directory's files."""

_XATTR = "SCHILY.xattr."
_KEPT_XATTRS = ("security.capability", "user.")
"""Prefixes of extended attributes that are kept. With those of `trusted.`, an overlay would show other files."""

_MOUNT_POINTS = ("dev", "proc", "sys")
"""Directories that each sandbox mounts filesystems on."""
_OWN = (("etc", "hosts"), ("etc", "hostname"), ("etc", "resolv.conf"), ("etc", "mtab"))
"""Files of which each sandbox has its own, like each container."""

_MAX_ENTRIES, _MAX_DEPTH = 2_000_000, 2 * MAX_DEPTH
_MAX_TIME = 1 << 33
"""Seconds since the epoch up to which all filesystems accept a time."""

_OF_THE_LAYER = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL),
    *(errno.EXDEV, errno.EPERM, errno.EMLINK),
}
"""Errnos of the kernel for an invalid member. Other errors are those of this host."""


class RootTree:
    """A directory that becomes an image's root, and a context manager.

    Args:
        path: The directory, empty.
        size: Maximum number of bytes of all files of all layers.
        check: Callback that is called now and then, and may raise to stop the work.
    """

    def __init__(self, path: Path, size: int, check: Callable[[], None] = lambda: None) -> None:
        """Open the directory."""
        path.chmod(0o755)
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._left = size
        self._check = check
        self._made: set[int] = set()
        self._times: dict[tuple[str, ...], int] = {}
        self._opened: tuple[tuple[str, ...], int] | None = None

    def __enter__(self) -> RootTree:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the directory."""
        self._forget()
        os.close(self._root)

    def apply(self, layer: IO[bytes]) -> None:
        """Unpack a layer over those below it.

        Args:
            layer: Uncompressed tar archive.

        Raises:
            ImagePullError: The layer is invalid or too large.
        """
        self._made, self._times = set(), {}
        limits = ArchiveLimits(size=self._left, entries=_MAX_ENTRIES, depth=_MAX_DEPTH)
        try:
            for member in read_archive(layer, limits, self._check):
                self._left -= member.info.size if member.info.isreg() else 0
                self._take(member)
            for parts, time in reversed(self._times.items()):
                with contextlib.suppress(OSError):
                    os.utime(self._parent(parts), ns=(time, time))
        except tarfile.TarError as error:
            raise _make_error(str(error)) from error

    def finish(self) -> None:
        """Remove the files of which each sandbox has its own, and create empty directories to mount on."""
        self._forget()
        for *above, name in _OWN:
            with contextlib.suppress(OSError):
                self._remove(self._parent(tuple(above)), name)
        self._forget()
        for name in _MOUNT_POINTS:
            with contextlib.suppress(FileNotFoundError):
                self._remove(self._root, name)
            os.mkdir(name, 0o755, dir_fd=self._root)
            os.chmod(name, 0o755, dir_fd=self._root)

    # --- members -------------------------------------------------------------------------------------

    def _take(self, member: Member) -> None:
        """Unpack a member or whiteout. Raise `ImagePullError` if it is invalid. Devices are left out."""
        if ".." in member.parts or "\0" in member.info.name:
            raise _make_error(f"{member.info.name!r} leads out of the image")
        try:
            if not member.parts:
                self._dress(self._root, ".", member.info)
            elif member.parts[-1].startswith(_WHITEOUT):
                self._white_out(member.parts)
            elif not member.info.isdev() or member.info.isfifo():
                # Sandboxes have devices of their own, and to an overlay the device 0/0 is a whiteout.
                self._make(member)
        except (ValueError, OverflowError, RecursionError) as error:
            raise _make_error(f"{member.info.name!r} makes no sense: {error}") from error
        except OSError as error:
            if error.errno not in _OF_THE_LAYER:
                raise
            raise _make_error(f"{member.info.name!r} cannot be unpacked: {error.strerror}") from error

    def _make(self, member: Member) -> None:
        """Create a member in place of what is there."""
        info, (*above, name) = member.info, member.parts
        parent = self._parent(tuple(above), make=True)
        found = _read_status(parent, name)
        if found is not None and not (info.isdir() and stat.S_ISDIR(found.st_mode)):
            self._remove(parent, name)
            # The removed file may have been on the path to the directory that is held open.
            self._forget()
            parent, found = self._parent(tuple(above), make=True), None
        if info.isdir():
            if found is None:
                os.mkdir(name, 0o700, dir_fd=parent)
            self._times[member.parts] = _read_time(info)
        elif member.content is not None:
            self._write(parent, name, member.content)
        elif info.issym():
            os.symlink(info.linkname, name, dir_fd=parent)
        elif info.islnk():
            self._link(parent, name, info.linkname)
        elif info.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
        else:
            raise ValueError(f"members of type {info.type!r} are unknown")
        self._dress(parent, name, info)

    def _write(self, parent: int, name: str, content: IO[bytes]) -> None:
        """Write a regular file."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        with os.fdopen(fd, "wb") as file:
            copy_content(content, file, self._check)

    def _link(self, parent: int, name: str, target: str) -> None:
        """Create a hard link. Its target is relative to the root."""
        parts = tuple(part for part in target.split("/") if part not in ("", "."))
        if ".." in parts or not parts:
            raise ValueError(f"it is a link to {target!r}")
        source = open_directory_in_root(self._root, "/".join(parts[:-1]))
        try:
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _dress(self, parent: int, name: str, info: tarfile.TarInfo) -> None:
        """Set owner, mode, attributes and time. The owner first: that clears set-user-id bits and capabilities."""
        if not info.islnk():
            os.chown(name, info.uid, info.gid, dir_fd=parent, follow_symlinks=False)
            if not info.issym():
                # chmod follows links; this is none, since nothing else writes here.
                os.chmod(name, info.mode & 0o7777, dir_fd=parent)
                self._set_attributes(parent, name, info)
            os.utime(name, ns=(_read_time(info), _read_time(info)), dir_fd=parent, follow_symlinks=False)
        self._made.add(os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino)

    def _set_attributes(self, parent: int, name: str, info: tarfile.TarInfo) -> None:
        """Set the extended attributes that are kept."""
        found = {key.removeprefix(_XATTR): value for key, value in info.pax_headers.items() if key.startswith(_XATTR)}
        kept = {key: value for key, value in found.items() if key.startswith(_KEPT_XATTRS)}
        if not kept or info.isfifo():
            return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            for key, value in kept.items():
                os.setxattr(fd, key, value.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)

    # --- whiteouts -----------------------------------------------------------------------------------

    def _white_out(self, parts: tuple[str, ...]) -> None:
        """Remove files of the layers below. Those of this layer stay, in whichever order its members come."""
        *above, name = parts
        try:
            parent = self._parent(tuple(above))
        except (FileNotFoundError, NotADirectoryError):
            return
        if name == _OPAQUE:
            self._empty(parent)
        elif not name.startswith(_WHITEOUT * 2):
            # Other names with a double prefix are notes of aufs, the storage driver from which the format comes.
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise ValueError("it takes away what is no name")
            self._empty(parent, only=hidden)
        self._forget()

    def _empty(self, directory: int, only: str | None = None) -> None:
        """Remove what the layers below have in a directory, or its one name `only`."""
        for name in os.listdir(directory) if only is None else [only]:
            found = _read_status(directory, name)
            if found is None:
                continue
            if found.st_ino not in self._made:
                self._remove(directory, name)
            elif stat.S_ISDIR(found.st_mode):
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                try:
                    self._empty(below)
                finally:
                    os.close(below)

    def _remove(self, parent: int, name: str) -> None:
        """Remove a file, or a directory with its content."""
        try:
            os.unlink(name, dir_fd=parent)
        except (IsADirectoryError, PermissionError):
            remove_directory(parent, name)

    # --- directories ---------------------------------------------------------------------------------

    def _parent(self, parts: tuple[str, ...], *, make: bool = False) -> int:
        """Return the descriptor of a directory. It stays open until another one is requested."""
        if not parts:
            return self._root
        if self._opened is not None and self._opened[0] == parts:
            return self._opened[1]
        try:
            fd = open_directory_in_root(self._root, "/".join(parts))
        except FileNotFoundError:
            if not make:
                raise
            above = self._parent(parts[:-1], make=True)
            os.mkdir(parts[-1], 0o755, dir_fd=above)
            os.chmod(parts[-1], 0o755, dir_fd=above)
            fd = open_directory_in_root(self._root, "/".join(parts))
        self._forget()
        self._opened = (parts, fd)
        return fd

    def _forget(self) -> None:
        """Close the directory that is held open."""
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None


def _read_status(parent: int, name: str) -> os.stat_result | None:
    """Return the status of a name, without following links; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_time(info: tarfile.TarInfo) -> int:
    """Return the time of a member in nanoseconds; 0 for an invalid one."""
    return int(info.mtime * 1_000_000_000) if 0 <= info.mtime < _MAX_TIME else 0


def _make_error(what: str) -> ImagePullError:
    return ImagePullError(
        f"a layer of the image cannot be unpacked: {what}",
        key="docker_image",
        remedy="make the image anew, or use --sandbox docker",
    )
