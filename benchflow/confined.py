"""Open files of this host whose names a sandbox, an agent or an archive can choose.

Whoever chooses a name also chooses what lies behind it, and may change it while it is being opened: a link to a key of
the host, a pipe that never answers, a device whose driver acts when it is opened. Such a file is opened here and
nowhere else: relative to the descriptor of a directory that the host itself has named, through no link, never above
that directory, and only if it is a regular file. `tests/unit/architecture/test_confined_files.py` holds this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, NamedTuple

from benchflow.errors import UnsafePathError

MAX_DEPTH = 64
"""Parts of a name. Deeper trees make every operation slow, and exceed the recursion of common tools."""

MAX_ENTRIES = 500_000
"""Files, directories and links below one directory, or in one archive: each takes an inode of the host's."""

# openat2(2) of Linux 5.6, for which Python has no function. The number is the same on every architecture.
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
_CONFINED = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS

_PATH_ONLY = getattr(os, "O_PATH", 0)
"""0 on macOS, where a client reads results."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WITHOUT_WAITING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_LEADS_ELSEWHERE = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR)
"""What the kernel answers for a name that leads through a link, out of the directory, or through a file."""


class Entry(NamedTuple):
    """A file, directory, link or node below a `ConfinedDirectory`."""

    name: str
    """Relative to the directory, with `/` between its parts."""
    status: os.stat_result
    """Its own: of a link, not of what it leads to."""

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


class ConfinedDirectory:
    """A directory of this host whose content is not trusted, held by a descriptor. Use it as a context manager.

    All names are relative to it. Methods raise `FileNotFoundError` for what does not exist, and `UnsafePathError` for
    a name that is absolute, has `..`, leads through a link, is deeper than `MAX_DEPTH`, or is of another kind than asked
    for.

    Args:
        path: Chosen by the host alone; links on the way to it are the user's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, _DIRECTORY)

    def __enter__(self) -> ConfinedDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    # --- reading -------------------------------------------------------------------------------------

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading."""
        return os.fdopen(self.open_descriptor(name, os.O_RDONLY), "rb")

    def open_descriptor(self, name: str, flags: int) -> int:
        """Open a regular file that exists, with `flags` as of `os.open`, and return its descriptor."""
        with self._parent(name) as (parent, last):
            if not _PATH_ONLY:
                fd = self._resolve(parent, last, name, flags | os.O_NOFOLLOW | _WITHOUT_WAITING)
                return self._require_regular(fd, name)
            # Opening a device acts on it. So the kernel says what it is before it is opened.
            found = self._require_regular(self._resolve(parent, last, name, _PATH_ONLY | os.O_CLOEXEC), name)
            try:
                return os.open(f"/proc/self/fd/{found}", flags | _WITHOUT_WAITING)
            finally:
                os.close(found)

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a regular file. Raise `UnsafePathError` beyond `limit` of them."""
        with self.open(name) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise self._unsafe(name, f"is larger than {limit} bytes")
        return content

    def status(self, name: str) -> os.stat_result:
        """Return the status of a file, directory or link itself."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Tell whether there is anything under a name that leads through no link."""
        try:
            self.status(name)
        except (FileNotFoundError, UnsafePathError):
            return False
        return True

    def read_link(self, name: str) -> str:
        """Return the text of a link."""
        with self._parent(name) as (parent, last):
            return os.readlink(last, dir_fd=parent)

    def entries(self, below: str = ".") -> Iterator[Entry]:
        """Yield all that is below one of its directories, sorted, each directory before its content.

        Raises `UnsafePathError` beyond `MAX_DEPTH` or `MAX_ENTRIES`.
        """
        count = 0
        waiting = [below]
        while waiting:
            name = waiting.pop()
            fd = self._open_directory(name)
            try:
                prefix = "" if name == "." else f"{name}/"
                found = [
                    Entry(f"{prefix}{one}", os.stat(one, dir_fd=fd, follow_symlinks=False))
                    for one in sorted(os.listdir(fd))
                ]
            finally:
                os.close(fd)
            count += len(found)
            if count > MAX_ENTRIES:
                raise self._unsafe(below, f"holds more than {MAX_ENTRIES} files")
            yield from found
            waiting += [one.name for one in reversed(found) if one.is_directory]

    # --- writing -------------------------------------------------------------------------------------

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file that does not exist, and return its descriptor for reading and writing.

        Raises `FileExistsError`, also for a link that leads nowhere.
        """
        with self._parent(name) as (parent, last):
            return os.open(last, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """Yield a new file, and give it the name at the end of the block, in place of a file or link that has it."""
        with self._parent(name) as (parent, last):
            # A name that nobody else could have made before, nor a link with it.
            part = f".{secrets.token_hex(8)}.part"
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    yield file
                    file.flush()
                    os.fchmod(fd, mode)
                try:
                    os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
                except IsADirectoryError as error:
                    raise self._unsafe(name, "is a directory") from error
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=parent)
                raise

    def make_directories(self, name: str, mode: int = 0o700) -> None:
        """Make a directory and what is missing above it; one that is there already is success."""
        at = os.dup(self._fd)
        try:
            for part in self._parts(name):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=at)
                below = self._resolve(at, part, name, _DIRECTORY)
                os.close(at)
                at = below
        finally:
            os.close(at)

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link. Raises `FileExistsError`. No method of this class follows it."""
        with self._parent(name) as (parent, last):
            os.symlink(target, last, dir_fd=parent)

    def remove(self, name: str) -> None:
        """Remove a file or a link; missing is success."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    # --- resolving -----------------------------------------------------------------------------------

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise self._unsafe(name, "leads out of its directory")
        if len(parts) > MAX_DEPTH:
            raise self._unsafe(name, f"is nested deeper than {MAX_DEPTH} directories")
        return parts

    @contextlib.contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the directory that holds a name, and the name's last part."""
        *above, last = self._parts(name) or ["."]
        if not above:
            yield self._fd, last
            return
        fd = self._resolve(self._fd, "/".join(above), name, _DIRECTORY)
        try:
            yield fd, last
        finally:
            os.close(fd)

    def _open_directory(self, name: str) -> int:
        return self._resolve(self._fd, "/".join(self._parts(name)) or ".", name, _DIRECTORY)

    def _resolve(self, parent: int, path: str, name: str, flags: int) -> int:
        """Open a path below a directory through no link. name: as errors show it."""
        try:
            return _opener()(parent, path, flags)
        except OSError as error:
            if error.errno in _LEADS_ELSEWHERE:
                raise self._unsafe(name, "is or leads through a link, or leads through a file") from error
            raise

    def _require_regular(self, fd: int, name: str) -> int:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return fd
        os.close(fd)
        raise self._unsafe(name, f"is {_KINDS.get(stat.S_IFMT(mode), 'no regular file')}")

    def _unsafe(self, name: str, what: str) -> UnsafePathError:
        return UnsafePathError(f"{what}; it is not opened, since a sandbox chose it", file=str(self.path / name))


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_in_root(root: int, path: str) -> int:
    """Open a file of a root directory for reading as a process that has this root would, and return its descriptor.

    Links mean what they mean inside, and none leads out. What is opened may be of any kind, and is not waited for.
    Raises `OSError`.

    Args:
        root: A descriptor of the directory.
        path: Absolute, or relative to the root.
    """
    found = _openat2(root, path, _PATH_ONLY | os.O_CLOEXEC, _RESOLVE_IN_ROOT)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | _WITHOUT_WAITING)
    finally:
        os.close(found)


Opener = Callable[[int, str, int], int]
"""Open a path below the directory of a descriptor, with flags, through no link."""


@functools.cache
def _opener() -> Opener:
    root = os.open("/", _DIRECTORY)
    try:
        os.close(open_by_kernel(root, ".", _DIRECTORY))
    except OSError:
        # An older kernel, a seccomp filter around this process that does not know the call, or macOS.
        return open_by_steps
    finally:
        os.close(root)
    return open_by_kernel


def open_by_kernel(parent: int, path: str, flags: int) -> int:
    """Have the kernel resolve the whole path."""
    return _openat2(parent, path, flags, _CONFINED)


def open_by_steps(parent: int, path: str, flags: int) -> int:
    """Resolve a path part by part, none of which may be a link: the same, for more system calls."""
    *above, last = path.split("/")
    at = parent
    try:
        for part in above:
            below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            if at != parent:
                os.close(at)
            at = below
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        if at != parent:
            os.close(at)


def _openat2(parent: int, path: str, flags: int, resolve: int) -> int:
    how = struct.pack("=QQQ", flags, 0, resolve)
    fd: int = _libc().syscall(_OPENAT2, parent, os.fsencode(path), how, len(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
