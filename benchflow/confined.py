"""Safe access to files of this host whose names a sandbox, an agent or an archive can choose.

Code that chooses a name also chooses the file behind it, and may replace it while it is being opened: by a link to a
key of the host, a pipe that never answers, a device whose driver acts when it is opened. Such a file is opened here and
nowhere else: relative to the descriptor of a directory that the host itself has named, through no link, never above
that directory, and only if it is a regular file. `tests/unit/architecture/test_confined_files.py` checks this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from benchflow.errors import UnsafePathError

MAX_DEPTH = 64
"""Maximum number of parts of a name in a sandbox's tree. Deeper ones make every operation slow, and exceed the
recursion limits of common tools.

A `ConfinedDirectory` allows twice as many: such a tree may be below directories of the host's own.
"""

MAX_PATH = 2000
"""Maximum bytes of a name in a sandbox's tree; a `ConfinedDirectory` allows twice as many. The kernel allows 4095."""

MAX_PART = 255
"""Maximum bytes of one part of a name, as in all file systems of Linux."""

MAX_ENTRIES = 500_000
"""Maximum number of files, directories and links below one directory, or in one archive: each takes an inode of the
host.
"""

MAX_TEXT = 4 * 1024 * 1024
"""Maximum bytes of a file of a task that is read as a whole, such as its instruction or Dockerfile; more than any
needs.
"""

# openat2(2) of Linux 5.6, for which Python has no function. The number is the same on every architecture.
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
_ATTEMPTS = 128
_CONFINED = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS

_PATH_ONLY = getattr(os, "O_PATH", 0)
"""0 on macOS, where a client reads results."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WITHOUT_WAITING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_LEADS_ELSEWHERE = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR)
"""Error numbers of the kernel for a name that leads through a link, out of the directory, or through a file."""


class DirectoryEntry(NamedTuple):
    """File, directory, link or node below a `ConfinedDirectory`."""

    name: str
    """Path relative to the directory, with `/` between its parts."""
    status: os.stat_result
    """Status of the entry itself, not of a link's target."""

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        """Return whether it is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)


class ConfinedDirectory:
    """Directory of this host with untrusted content, held open by a descriptor; a context manager.

    All names are relative to it. Methods raise `FileNotFoundError` if a name does not exist, and `UnsafePathError` if
    it is absolute, contains `..`, leads through a link, is too long or too deep, or is of another kind than requested.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory.

        Args:
            path: Chosen by the host alone; links on the way to it are the user's own.
        """
        self.path = path
        self._fd = os.open(path, _DIRECTORY)

    def __enter__(self) -> ConfinedDirectory:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    # --- reading -------------------------------------------------------------------------------------

    def open(self, name: str) -> BufferedReader:
        """Open a regular file for reading."""
        return os.fdopen(self.open_descriptor(name, os.O_RDONLY), "rb")

    def open_descriptor(self, name: str, flags: int) -> int:
        """Open an existing regular file, with `flags` as of `os.open`, and return its descriptor."""
        with self._parent(name) as (parent, last):
            if not _PATH_ONLY:
                fd = self._resolve(parent, last, name, flags | os.O_NOFOLLOW | _WITHOUT_WAITING)
                return self._require_regular(fd, name)
            # Opening a device acts on it, so the kind is checked by an O_PATH descriptor, which does not open it.
            found = self._require_regular(self._resolve(parent, last, name, _PATH_ONLY | os.O_CLOEXEC), name)
            try:
                return os.open(f"/proc/self/fd/{found}", flags | _WITHOUT_WAITING)
            finally:
                os.close(found)

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a regular file. Raise `UnsafePathError` if it has more than `limit`."""
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
        """Return whether a name exists and leads through no link."""
        try:
            self.status(name)
        except (FileNotFoundError, UnsafePathError):
            return False
        return True

    def read_link(self, name: str) -> str:
        """Return the target of a symbolic link."""
        with self._parent(name) as (parent, last):
            try:
                return os.readlink(last, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                raise self._unsafe(name, "is no symbolic link") from error

    def attributes(self, name: str) -> dict[str, bytes]:
        """Return the extended attributes of a directory."""
        fd = self._open_directory(name)
        try:
            return {key: os.getxattr(fd, key) for key in os.listxattr(fd)}
        finally:
            os.close(fd)

    def entries(
        self, below: str = ".", *, skip: Callable[[str], bool] = lambda name: False, limit: int = MAX_ENTRIES
    ) -> Iterator[DirectoryEntry]:
        """Yield everything below a directory, sorted, each directory before its content.

        Entries that are removed meanwhile are skipped. Raises `UnsafePathError` if the tree is too deep, or has more
        than `limit` entries.

        Args:
            below: Directory to begin with.
            skip: Whether to skip a name and everything below it.
            limit: Maximum number of files, directories and links, skipped or not.
        """
        left = limit
        waiting = [below]
        while waiting:
            name = waiting.pop()
            try:
                fd = self._open_directory(name)
            except FileNotFoundError:
                if name == below:
                    raise
                continue
            try:
                # Not listed at once: a directory may hold more names than this process has memory.
                with os.scandir(fd) as listed:
                    names = [one.name for one in itertools.islice(listed, left + 1)]
                left -= len(names)
                if left < 0:
                    raise self._unsafe(below, f"holds more than {limit} files")
                prefix = "" if name == "." else f"{name.rstrip('/')}/"
                found = []
                for one in sorted(names):
                    with contextlib.suppress(FileNotFoundError):
                        if not skip(f"{prefix}{one}"):
                            found.append(
                                DirectoryEntry(f"{prefix}{one}", os.stat(one, dir_fd=fd, follow_symlinks=False))
                            )
            finally:
                os.close(fd)
            yield from found
            waiting += [one.name for one in reversed(found) if one.is_directory]

    # --- writing -------------------------------------------------------------------------------------

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file that does not exist, and return its descriptor for reading and writing.

        Raises `FileExistsError`, also for a dangling link.
        """
        with self._parent(name) as (parent, last):
            return os.open(last, os.O_RDWR | _NEW, mode, dir_fd=parent)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """Yield a new file, which at the end of the block atomically replaces the file or link of this name, if any."""
        with self._parent(name) as (parent, last):
            # A random name, so that no sandbox can have made a file or link of this name before.
            part = f".{secrets.token_hex(8)}.part"
            fd = os.open(part, os.O_WRONLY | _NEW, 0o600, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    yield file
                    file.flush()
                    os.fchmod(fd, mode)
                with self._directories_refused(name):
                    os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=parent)
                raise

    def make_directories(self, name: str, mode: int = 0o700) -> None:
        """Make a directory and missing ones above it; an existing one is success."""
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

    def set_mode(self, name: str, mode: int) -> None:
        """Set the permissions of a directory."""
        fd = self._open_directory(name)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link, which no method of this class follows. Raise `FileExistsError` if the name exists."""
        with self._parent(name) as (parent, last):
            try:
                os.symlink(target, last, dir_fd=parent)
            except (ValueError, OSError) as error:
                # NUL, surrogates that encode no byte, an empty target, or one that is too long for the kernel.
                if isinstance(error, OSError) and (target and error.errno != errno.ENAMETOOLONG):
                    raise
                raise self._unsafe(name, "is a link that leads to what is no name") from error

    def remove(self, name: str) -> None:
        """Remove a file or a link; missing is success."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._parent(name) as (parent, last),
            self._directories_refused(name),
        ):
            os.unlink(last, dir_fd=parent)

    def remove_tree(self, name: str) -> None:
        """Remove a file, a link or a directory with all that is in it; missing is success."""
        try:
            self.remove(name)
        except UnsafePathError:
            with contextlib.suppress(FileNotFoundError), self._parent(name) as (parent, last):
                try:
                    remove_directory(parent, last)
                except FileNotFoundError:
                    raise
                except (OSError, RecursionError) as error:
                    raise self._unsafe(name, "cannot be removed, or is being changed") from error

    def rename(self, old: str, new: str) -> None:
        """Rename a file, a directory or a link itself, in place of a file or link that has the new name."""
        with self._parent(old) as (source, first), self._parent(new) as (target, last):
            try:
                os.rename(first, last, src_dir_fd=source, dst_dir_fd=target)
            except (IsADirectoryError, NotADirectoryError) as error:
                raise self._unsafe(new, "is, or is to become, a directory") from error
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EINVAL):
                    raise
                raise self._unsafe(new, "is a directory that is not empty, or lies in what is to be moved") from error

    # --- resolving -----------------------------------------------------------------------------------

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise self._unsafe(name, "leads out of its directory")
        if len(parts) > 2 * MAX_DEPTH:
            raise self._unsafe(name[:MAX_PATH], f"is nested deeper than {2 * MAX_DEPTH} directories")
        try:
            sizes = [len(os.fsencode(part)) for part in parts]
        except UnicodeEncodeError as error:
            # Names in JSON and archives may have surrogates that encode no byte.
            raise self._unsafe(ascii(name[:MAX_PATH]), "is no name that a file can have") from error
        if max(sizes, default=0) > MAX_PART or sum(sizes) + len(sizes) > 2 * MAX_PATH:
            raise self._unsafe(name[:MAX_PATH], "is longer than the name of a file can be")
        return parts

    @contextlib.contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the directory that contains a name, and the name's last part."""
        *above, last = self._parts(name) or ["."]
        if not above:
            yield self._fd, last
            return
        fd = self._resolve(self._fd, "/".join(above), name, _DIRECTORY)
        try:
            yield fd, last
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _directories_refused(self, name: str) -> Iterator[None]:
        try:
            yield
        except IsADirectoryError as error:
            raise self._unsafe(name, "is a directory") from error
        except OSError as error:
            # EBUSY: `.`. EPERM: POSIX's error where Linux has EISDIR.
            if error.errno not in (errno.EBUSY, errno.EPERM):
                raise
            raise self._unsafe(name, "is a directory, or is protected") from error

    def _open_directory(self, name: str) -> int:
        return self._resolve(self._fd, "/".join(self._parts(name)) or ".", name, _DIRECTORY)

    def _resolve(self, parent: int, path: str, name: str, flags: int) -> int:
        """Open a path below a directory through no link. `name` is the path in errors."""
        try:
            return _choose_opener()(parent, path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP and "/" not in path and not flags & os.O_DIRECTORY:
                raise self._unsafe(name, "is a symbolic link") from error
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


@dataclass(frozen=True)
class ConfinedPath:
    """Name below a directory of this host with untrusted content, to be opened later."""

    root: Path
    """Path of the `ConfinedDirectory`."""
    name: str = "."
    """Name relative to it."""

    def __str__(self) -> str:
        """Return the whole path, for messages."""
        return str(self.root / self.name)

    def open(self) -> BufferedReader:
        """Open a regular file for reading."""
        with ConfinedDirectory(self.root) as directory:
            return directory.open(self.name)

    def read(self, limit: int) -> bytes:
        """Return the bytes of a regular file. Raise `UnsafePathError` if it has more than `limit`."""
        with ConfinedDirectory(self.root) as directory:
            return directory.read(self.name, limit)

    def status(self) -> os.stat_result | None:
        """Return the status of the file, directory or link itself; None if it is missing, or if a link leads there."""
        try:
            with ConfinedDirectory(self.root) as directory:
                return directory.status(self.name)
        except (FileNotFoundError, NotADirectoryError, UnsafePathError):
            return None

    def is_directory(self) -> bool:
        """Return whether it is a directory, and not a link to one."""
        status = self.status()
        return status is not None and stat.S_ISDIR(status.st_mode)


def remove_directory(parent: int, name: str) -> None:
    """Remove an entry of a directory, itself a directory, and its content. Raise `OSError` if it is replaced meanwhile.

    `shutil.rmtree` opens the name of what was a directory as whatever it is by now: a pipe would block it for ever.
    """
    opened = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        with os.scandir(opened) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_directory(opened, entry.name)
            else:
                os.unlink(entry.name, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=parent)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: Path, limit: int, *, is_cut: bool = False) -> bytes:
    """Return the bytes of a file whose name the host knows, but whose kind and size are untrusted.

    It never blocks on a pipe, and reads no more than `limit`. Links are followed: those of a task that lead out of it
    were refused before, and others are the user's own.

    Args:
        path: Path of the file.
        limit: Maximum bytes.
        is_cut: Whether a larger file is cut to `limit`, in place of an error.

    Raises:
        UnsafePathError: It is not a regular file, or is larger than `limit`.
        OSError: It cannot be opened.
    """
    with open_regular(path) as file:
        content = file.read(limit if is_cut else limit + 1)
    if len(content) > limit:
        raise UnsafePathError(f"is larger than {limit} bytes, so it is not read", file=str(path))
    return content


def open_regular(path: Path) -> BufferedReader:
    """Open such a file for reading, with the same errors as `read_regular`."""
    # Opening a device acts on it, so the kind is checked before, and again on the opened descriptor.
    _expect_regular(path, path.stat())
    file = os.fdopen(os.open(path, os.O_RDONLY | _WITHOUT_WAITING), "rb")
    try:
        _expect_regular(path, os.fstat(file.fileno()))
    except UnsafePathError:
        file.close()
        raise
    return file


def _expect_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise UnsafePathError(f"is {kind}, so it is not read", file=str(path))


def open_in_root(root: int, path: str) -> int:
    """Open a regular file for reading as a process with this root directory would, and return its descriptor.

    Links are resolved inside the root, and none leads out. Raises `OSError`; `EINVAL` if it is no regular file.

    Args:
        root: Descriptor of the root directory.
        path: Absolute, or relative to the root.
    """
    found = _openat2(root, path, _PATH_ONLY | os.O_CLOEXEC, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | _WITHOUT_WAITING)
    finally:
        os.close(found)


def open_directory_in_root(root: int, path: str) -> int:
    """Open a directory as a process with this root directory would, and return its descriptor.

    Links are resolved inside the root, and none leads out. Raises `OSError`.

    Args:
        root: Descriptor of the root directory.
        path: Absolute, or relative to the root.
    """
    return _openat2(root, path or ".", _DIRECTORY, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)


Opener = Callable[[int, str, int], int]
"""Opens a path below the directory of a descriptor, with flags, through no link."""


@functools.cache
def _choose_opener() -> Opener:
    """Return `open_by_kernel` if the kernel has openat2(2), else `open_by_steps`."""
    root = os.open("/", _DIRECTORY)
    try:
        os.close(open_by_kernel(root, ".", _DIRECTORY))
    except OSError:
        # A kernel before 5.6, a seccomp filter that does not know the call, or macOS.
        return open_by_steps
    finally:
        os.close(root)
    return open_by_kernel


def open_by_kernel(parent: int, path: str, flags: int) -> int:
    """Open a path below a directory through no link, resolved by the kernel as a whole: openat2(2)."""
    return _openat2(parent, path, flags, _CONFINED)


def open_by_steps(parent: int, path: str, flags: int) -> int:
    """Open a path below a directory through no link, resolved part by part: for kernels without openat2(2)."""
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
    for _ in range(_ATTEMPTS):
        fd: int = _load_libc().syscall(_OPENAT2, parent, os.fsencode(path), how, len(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        # EAGAIN: a rename raced with the resolution, so that the kernel can't tell whether `..` leads out.
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


@functools.cache
def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
