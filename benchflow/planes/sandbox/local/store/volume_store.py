"""The store of local sandboxes: volumes on a filesystem of its own, cloned in one step where the filesystem can do it.

A volume has a name like `sandboxes/abc`. Under that name it is complete or absent, whenever a process dies. The caller
decides which volumes there are, and for what.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import stat
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from benchflow.errors import DiskFullError, SandboxUnavailableError, StoreError
from benchflow.host_files import create_atomic, lock, open_fd
from benchflow.planes.sandbox import directory_trees
from benchflow.planes.sandbox.local.store import btrfs
from benchflow.planes.sandbox.local.store.loop_image import DETACH_SEC, STOPPED, LoopImage
from benchflow.planes.sandbox.local.store.mount_table import find_mount

Kind = Literal["snapshot", "reflink", "copy"]
"""Way of cloning: a snapshot of the whole, files that share their blocks, or copies."""

VARIABLE = "BENCHFLOW_LOCAL_STORE"
"""Environment variable with a directory that is used in place of the image file."""

SCARCE = 0.1
"""Share of free space below which removed space is freed at once, which costs all processes a commit."""

RECLAIM_SEC = 2.0
"""Seconds to retry while removed space is being freed in the background."""

_DRAFTS = ".partial"
_KIND = ".kind"
_CANNOT_SHARE = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS}

_libc = ctypes.CDLL(None, use_errno=True)


class VolumeStore:
    """The volumes of one state directory. Any number of processes and threads may use it at once.

    Methods open the store if it is not open. They raise `DiskFullError` if no space is left, and `StoreError` for other
    errors of the filesystem.

    Args:
        home: Directory of the engine, for the image file and its mount. `$BENCHFLOW_LOCAL_STORE`, a directory on
            another filesystem than `/`, replaces both.
    """

    def __init__(self, home: Path) -> None:
        """Make it. Nothing is opened yet."""
        self.home = home
        given = os.environ.get(VARIABLE)
        self._given = Path(given).expanduser() if given else None
        if self._given is None:
            self.root = home / "store"
        else:
            # Two state directories may share one filesystem, and must not share volumes.
            owner = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:12]
            self.root = self._given / f"benchflow-{owner}"
        self._image = LoopImage(home / "store.img", self.root)
        self._kind: Kind | None = None
        self._fd = -1
        self._release = weakref.finalize(self, _do_nothing)

    @property
    def kind(self) -> Kind:
        """Return the way in which volumes are cloned."""
        self.open()
        return cast(Kind, self._kind)

    @property
    def mounted(self) -> bool:
        """Return whether the store is mounted, without mounting it."""
        return (self.root / _DRAFTS).is_dir()

    def open(self) -> None:
        """Create and mount the image, as far as that is not done. Raise `SandboxUnavailableError`, with the remedy."""
        if self._is_open():
            return
        if os.geteuid() != 0:
            raise SandboxUnavailableError(
                "local sandboxes need root", remedy="run as root, or use the Docker sandbox (--sandbox docker)"
            )
        with self._locked() as lock:
            if self._is_open():
                return
            with self._failures(self.root):
                if self._given is None:
                    self._image.attach(lock)
                else:
                    _check_given(self._given)
                # It holds set-user-id programs of sandboxes, which no user of this host may reach.
                self.root.mkdir(mode=0o700, exist_ok=True)
                if stat.S_IMODE(self.root.stat().st_mode) != 0o700:
                    self.root.chmod(0o700)
                (self.root / _DRAFTS).mkdir(exist_ok=True)
                self._kind = self._find_kind()
                self._hold()
        self._sweep()

    def release(self) -> None:
        """Close the store in this process, so that others may unmount it. The next use opens it again."""
        self._release()

    def close(self, patience: float = DETACH_SEC) -> bool:
        """Close the store, and unmount it unless another process or a sandbox uses it; return whether it is unmounted.

        The next use opens it again. A directory from `$BENCHFLOW_LOCAL_STORE` is not unmounted, which counts as
        success.

        Args:
            patience: Seconds in which the kernel must release the unused filesystem.
        """
        self._release()
        if self._given is not None or not self.home.exists():
            return True
        with self._locked() as lock, self._failures(self.root):
            return self._image.detach(lock, patience)

    def make(self, name: str) -> Path:
        """Create an empty volume and return its directory. Raise `FileExistsError`."""
        self.open()
        path = self._path(name)
        with self._failures(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._kind == "snapshot":
                self._once_it_fits(lambda: btrfs.create(path))
            else:
                path.mkdir()
            path.chmod(0o755)
        return path

    def clone(self, source: str, target: str) -> None:
        """Create a volume `target` with the content of `source`, which must not change meanwhile except with snapshots.

        Raises:
            FileNotFoundError: There is no `source`.
            FileExistsError: There is a `target`.
        """
        self.open()
        old, new = self._path(source), self._path(target)
        with self._failures(new):
            new.parent.mkdir(parents=True, exist_ok=True)
            if self._kind == "snapshot":
                return self._once_it_fits(lambda: btrfs.snapshot(old, new))
            with self._draft() as (draft, _):
                directory_trees.copy_tree(old, draft / "volume", reflink=self._kind == "reflink")
                # The content must reach the disk before the name, or a crash could leave the name with a part of it.
                self.sync()
                self._publish(draft / "volume", new)

    def fill(self, name: str, write: Callable[[Path, int], None]) -> None:
        """Create a volume whose content `write` makes. If that fails, there is none.

        Args:
            name: Name of the volume.
            write: Callback with its directory and a lock's descriptor: while a program has that open, what it writes is
                not removed as an orphan of a dead process.

        Raises:
            FileExistsError: There is a volume of this name.
        """
        self.open()
        target = self._path(name)
        with self._failures(target), self._draft() as (draft, lock):
            target.parent.mkdir(parents=True, exist_ok=True)
            volume = draft / "volume"
            if self._kind == "snapshot":
                self._once_it_fits(lambda: btrfs.create(volume))
            else:
                volume.mkdir()
            volume.chmod(0o755)
            write(volume, lock)
            # The content must reach the disk before the name, or a crash could leave the name with a part of it.
            self.sync()
            self._publish(volume, target)

    def delete(self, name: str) -> None:
        """Remove a volume. Missing is success. If it is interrupted, the next opening of the store removes the rest."""
        self.open()
        path = self._path(name)
        with self._failures(path):
            if self._kind == "snapshot":
                try:
                    btrfs.destroy(path)
                    if self._share_left() < SCARCE:
                        btrfs.reclaim(self.root)
                    return
                except FileNotFoundError:
                    return
                except OSError as error:
                    # A directory, or a volume with others in it.
                    if error.errno not in (errno.EINVAL, errno.ENOTDIR, errno.ENOTEMPTY):
                        raise
            doomed = self.root / _DRAFTS / uuid.uuid4().hex
            try:
                path.rename(doomed)
            except FileNotFoundError:
                return
            directory_trees.remove_tree(doomed)

    def sync(self) -> None:
        """Flush all that was written so far to the disk."""
        self.open()
        with self._failures(self.root):
            _sync(self._fd)

    def names(self, directory: str) -> list[str]:
        """Return the names of the volumes in a directory of the store, such as `sandboxes`; none if it is missing."""
        self.open()
        path = self._path(directory)
        with self._failures(path):
            try:
                return sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
            except FileNotFoundError:
                return []

    def _once_it_fits(self, step: Callable[[], None]) -> None:
        """Run a step, and retry while no space is left: destroyed volumes are freed in the background."""
        deadline = time.monotonic() + RECLAIM_SEC
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno != errno.ENOSPC or time.monotonic() > deadline:
                    raise
            btrfs.reclaim(self.root)
            time.sleep(0.05)

    def _share_left(self) -> float:
        """Return the share of free space."""
        status = os.statvfs(self.root)
        return status.f_bavail / status.f_blocks

    def _path(self, name: str) -> Path:
        """Return the path of a volume. Raise `StoreError` for an invalid name."""
        parts = PurePosixPath(name).parts
        if not parts or any(part.startswith(".") or part == "/" for part in parts):
            raise StoreError(f"`{name}` cannot be the name of a volume", file=str(self.root))
        return self.root.joinpath(*parts)

    def _is_open(self) -> bool:
        """Return whether this process has open what lies at the path, which after an unmount is another directory."""
        if not self._release.alive or self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self.root.stat())
        except FileNotFoundError:
            return False

    def _hold(self) -> None:
        """Keep the root open, so that no other process unmounts the store meanwhile."""
        self._release()
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._release = weakref.finalize(self, functools.partial(os.close, self._fd))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the store's lock against all processes and threads of this state directory; yield its descriptor."""
        with self._failures(self.home):
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = (self.home / "store.lock").open("a")
        with handle:
            lock(handle.fileno())
            yield handle.fileno()

    @contextlib.contextmanager
    def _failures(self, path: Path) -> Iterator[None]:
        """Translate errors of the filesystem, except those for what exists or is missing."""
        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    f"the sandbox store is full: {error.strerror}",
                    file=str(path),
                    remedy=f"end some rollouts, free space on its disk, or give {VARIABLE} a larger filesystem",
                ) from error
            if error.errno in STOPPED:
                # The next use opens it again, and mounts it anew if nothing else holds it.
                self._release()
            raise StoreError(f"{error.filename or 'the sandbox store'}: {error.strerror}", file=str(path)) from error

    @contextlib.contextmanager
    def _draft(self) -> Iterator[tuple[Path, int]]:
        """Yield a directory for work in progress and its lock's descriptor; remove it at the end."""
        while True:
            draft = self.root / _DRAFTS / uuid.uuid4().hex
            draft.mkdir(mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
                lock(fd)
                if draft.exists():
                    break
                # Between mkdir and lock, a sweep may have removed it as an orphan.
                os.close(fd)
        try:
            yield draft, fd
        finally:
            directory_trees.remove_tree(draft)
            os.close(fd)

    def _publish(self, volume: Path, target: Path) -> None:
        """Move a finished volume to its name. Raise `FileExistsError`: a rename would replace an empty directory."""
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        try:
            volume.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            raise

    def _sweep(self) -> None:
        """Remove volumes that dead processes have left half created or half removed."""
        with self._failures(self.root):
            for draft in (self.root / _DRAFTS).iterdir():
                with (
                    contextlib.suppress(FileNotFoundError, NotADirectoryError),
                    open_fd(draft, os.O_RDONLY | os.O_DIRECTORY) as fd,
                ):
                    if lock(fd, wait_sec=0):
                        directory_trees.remove_tree(draft)

    def _find_kind(self) -> Kind:
        """Return the way of cloning, from a record, else by a test: on a full filesystem a test would fail."""
        record = self.root / _KIND
        with contextlib.suppress(FileNotFoundError):
            known = record.read_text()
            if known in ("snapshot", "reflink", "copy"):
                return cast(Kind, known)
        kind = self._try_out()
        with create_atomic(record) as file:
            file.write(kind.encode())
        return kind

    def _try_out(self) -> Kind:
        """Test how volumes can be cloned. Raise `SandboxUnavailableError` if they can't hold an overlay's layers."""
        with self._draft() as (draft, _):
            try:
                os.setxattr(draft, "trusted.overlay.opaque", b"y")
                os.mknod(draft / "whiteout", 0o020000, 0)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise SandboxUnavailableError(
                    f"the filesystem of the sandbox store cannot hold an overlay's layers: {error.strerror}",
                    file=str(self.root),
                    remedy=f"unset {VARIABLE}, or name a directory on btrfs, xfs, ext4 or a tmpfs",
                ) from error
            if find_mount(self.root).kind == "btrfs":
                return "snapshot"
            (draft / "one").write_bytes(b"x")
            with (draft / "one").open("rb") as one, (draft / "other").open("wb") as other:
                try:
                    fcntl.ioctl(other, directory_trees.FICLONE, one.fileno())
                except OSError as error:
                    if error.errno not in _CANNOT_SHARE:
                        raise
                    return "copy"
            return "reflink"


def _check_given(directory: Path) -> None:
    """Raise `SandboxUnavailableError` for a directory that can't be used as a store."""
    remedy = f"unset {VARIABLE}, and the store is made as an image file in the state directory"
    if not directory.is_absolute() or not directory.is_dir():
        raise SandboxUnavailableError(
            "must be the absolute path of a directory that exists", file=VARIABLE, key=str(directory), remedy=remedy
        )
    mount = find_mount(directory)
    if mount.device == find_mount(Path("/")).device:
        raise SandboxUnavailableError(
            "lies on the filesystem of `/`, whose files cannot be the layers of a sandbox together with `/` itself",
            file=VARIABLE,
            key=str(directory),
            remedy=remedy + "; or name a directory on a volume of its own",
        )
    if not mount.writable:
        raise SandboxUnavailableError("is mounted read-only", file=VARIABLE, key=str(directory), remedy=remedy)


def _do_nothing() -> None:
    """Do nothing: the release of a store that is not open."""


def _sync(fd: int) -> None:
    """Call syncfs(2) on an open file."""
    if _libc.syncfs(fd) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")
