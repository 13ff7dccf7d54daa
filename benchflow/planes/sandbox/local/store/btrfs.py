"""Subvolumes of btrfs, by ioctl: each operation is atomic, even in a crash."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_ARGUMENT_BYTES = 4096
_NAME_AT = 8
_CREATE = 0x5000940E
_SNAPSHOT = 0x50009401
_DESTROY = 0x5000940F
_SYNC = 0x9408


def create(path: Path) -> None:
    """Create an empty subvolume. Raise `FileExistsError` if there is something."""
    _call(_CREATE, path)


def snapshot(source: Path, target: Path) -> None:
    """Create a writable subvolume `target` with the present content of `source`. Raise `FileExistsError`."""
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call(_SNAPSHOT, target, fd)
    finally:
        os.close(fd)


def destroy(path: Path) -> None:
    """Remove a subvolume with its files. Raise `FileNotFoundError`, or `OSError` if other subvolumes lie in it."""
    _call(_DESTROY, path)


def reclaim(path: Path) -> None:
    """Have the space of destroyed subvolumes freed soon, rather than within the usual half minute."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SYNC)
    finally:
        os.close(fd)


def _call(request: int, path: Path, fd: int = 0) -> None:
    """Make an ioctl on the parent of a subvolume. Its argument has a descriptor and the subvolume's name."""
    argument = bytearray(_ARGUMENT_BYTES)
    argument[:_NAME_AT] = fd.to_bytes(_NAME_AT, "little")
    name = os.fsencode(path.name)
    argument[_NAME_AT : _NAME_AT + len(name)] = name
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(parent, request, argument)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(parent)
