"""Files of a sandbox, read and written from the host's side.

The process that does it is in the sandbox's mount namespace, so every path and link means what it means in there, and
none leads out. It runs no program of the sandbox, since the sandbox's root may have changed them all.

In each operation `request` also has `pid` and `started` of the sandbox's first process. `enter.ProcessGoneError` is
raised if it has ended, and `OSError` for what the kernel refuses.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from typing import IO, Any, cast

from benchflow.planes.sandbox.local.helper.enter import CommandUser, enter_for_files, find_account

_CHUNK = 1024 * 1024


def read(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Copy the file `path` to the first of `fds`. Raises `OSError` EFBIG beyond `limit` bytes."""
    enter_for_files(request)
    with _open_regular(request["path"]) as source, open(fds[0], "wb") as sink:
        shutil.copyfileobj(source, cast(IO[bytes], _Limited(sink, request["limit"])), _CHUNK)
    return {}


def write(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Write the first of `fds` to the file `path`, with `mode` and owner `user`, and create missing parents."""
    enter_for_files(request)
    os.umask(0o022)
    account = find_account(request["user"])
    path = request["path"]
    _make_directory(os.path.dirname(path), account)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    # A new file replaces the old one, so that a link is not followed, and open descriptors keep the old content.
    part = f"{path}.{os.getpid()}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(fds[0], "rb") as source, open(fd, "wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
            os.fchown(fd, account.uid, account.gid)
            os.fchmod(fd, request["mode"])
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return {}


def unpack(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Unpack the tar archive in the first of `fds` into the directory `path`, replacing existing files.

    The owner of all is `user`; if that is null, the owners in the archive.
    """
    enter_for_files(request)
    os.umask(0o022)
    account = find_account(request["user"] or "0")
    root = request["path"]
    _make_directory(root, account)
    with open(fds[0], "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        modes: list[tuple[str, int]] = []
        for member in archive:
            if request["user"] is None:
                account = CommandUser(member.uid, member.gid, [member.gid], "/")
            place = os.path.join(root, member.name)
            if member.isdir():
                if not os.path.isdir(place):
                    _clear(place)
                    os.mkdir(place)
                os.chown(place, account.uid, account.gid)
                modes.append((place, member.mode))
                continue
            _clear(place)
            if member.issym():
                os.symlink(member.linkname, place)
                os.chown(place, account.uid, account.gid, follow_symlinks=False)
            elif member.isreg():
                _write_member(archive, member, place, account)
        # Last, since the mode may forbid even its owner to write into the directory.
        for place, mode in reversed(modes):
            os.chmod(place, mode & 0o7777)
    return {}


def pack(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Pack the file `path`, or the content of the directory, into the first of `fds`, as a tar archive.

    Returns:
    One of `single` (whether it was a file), `missing`, `too_deep` (it has directories nested deeper than `depth`), and
    `too_large` (its files have more than `limit` bytes, and nothing was read).

    Raises:
        OSError: EFBIG if the archive exceeds `limit`, since a file grew meanwhile.
    """
    enter_for_files(request)
    path = request["path"]
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"missing": True}
    single = not stat.S_ISDIR(status.st_mode)
    if single and not stat.S_ISREG(status.st_mode):
        return {"missing": True}
    if found := _find_excess(path, single, request["limit"]):
        return {"too_large": found}
    with open(fds[0], "wb") as whole:
        try:
            _pack_all(cast(IO[bytes], _Limited(whole, request["limit"])), path, single, request["depth"])
        except TooDeepError:
            return {"too_deep": True}
    return {"single": single}


def _find_excess(path: str, single: bool, limit: int) -> dict[str, Any] | None:
    """Return the size of all files and the name of the largest; None if they have at most `limit` bytes.

    Holes count: a file of a terabyte may take no space on this disk, and would in the archive.
    """
    total, largest = 0, (-1, "")
    files = [(".", [os.path.basename(path)])] if single else ((at, files) for at, _, files in os.walk(path))
    for directory, names in files:
        for name in names:
            place = path if single else os.path.join(directory, name)
            try:
                status = os.stat(place, follow_symlinks=single)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISREG(status.st_mode):
                total += status.st_size
                largest = max(largest, (status.st_size, place))
    return {"size": total, "largest": largest[1]} if total > limit else None


class TooDeepError(Exception):
    """A directory is nested deeper than the limit."""


def _pack_all(sink: IO[bytes], path: str, single: bool, depth: int) -> None:
    """Write a file, or all below a directory, to a tar archive. Raise `TooDeepError`."""
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        if single:
            _pack(archive, path, "file", follow=True)
            return
        for directory, names, files in os.walk(path):
            inside = os.path.relpath(directory, path)
            # Below some thousand directories, paths are longer than the kernel takes, and os.walk stops silently.
            if inside.count("/") + 1 > depth:
                raise TooDeepError
            for name in (*names, *files):
                _pack(archive, os.path.join(directory, name), os.path.normpath(os.path.join(inside, name)))


def _pack(archive: tarfile.TarFile, path: str, name: str, follow: bool = False) -> None:
    """Add one entry. Vanished ones are left out, and those that are no file, directory or link."""
    try:
        status = os.stat(path, follow_symlinks=follow)
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            with _open_regular(path) as file:
                info.size = os.fstat(file.fileno()).st_size
                archive.addfile(info, cast(IO[bytes], _Exactly(file, info.size)))
    except (FileNotFoundError, NotADirectoryError):
        return


class _Limited:
    """A sink that raises `OSError` EFBIG beyond a number of bytes."""

    def __init__(self, sink: Any, limit: int) -> None:
        self._sink, self._left = sink, limit

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        written: int = self._sink.write(data)
        return written


class _Exactly:
    """A file as long as it was measured: cut if it has grown meanwhile, padded if it has shrunk."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self._left = file, size

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data: bytes = self._file.read(wanted)
        self._left -= wanted
        return data.ljust(wanted, b"\0")


def _open_regular(path: str) -> Any:
    """Open a regular file for reading, without waiting for a pipe's other end or touching a device."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        # A device node without a device.
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise OSError(errno.EINVAL, "not a regular file", path) from error
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(number, "not a regular file", path)


def _make_directory(path: str, account: CommandUser) -> None:
    """Create a directory and its missing parents, owned by the account."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        os.mkdir(each)
        os.chown(each, account.uid, account.gid)


def _clear(place: str) -> None:
    """Remove an existing file, or directory with its content, in the place of a new entry."""
    try:
        os.unlink(place)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(place)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, place: str, account: CommandUser) -> None:
    """Write a file of an archive, with its mode and time, and create missing parents."""
    content = archive.extractfile(member)
    assert content is not None
    _make_directory(os.path.dirname(place), account)
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with content, open(fd, "wb") as sink:
        shutil.copyfileobj(content, sink, _CHUNK)
        # A write after fchmod would clear a set-user-id bit.
        sink.flush()
        os.fchown(fd, account.uid, account.gid)
        os.fchmod(fd, member.mode & 0o7777)
        os.utime(fd, (member.mtime, member.mtime))
