"""Subvolumes of btrfs by the kernel's own calls: each is one step that is done or not done, also after a crash."""

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
    """A new, empty subvolume. Raises `FileExistsError`."""
    _call(_CREATE, path)


def snapshot(source: Path, target: Path) -> None:
    """A new subvolume with the content that `source` has now; both may be written on. Raises `FileExistsError`."""
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call(_SNAPSHOT, target, fd)
    finally:
        os.close(fd)


def destroy(path: Path) -> None:
    """Remove a subvolume with all its files. Raises `FileNotFoundError`, and `OSError` where others lie in it."""
    _call(_DESTROY, path)


def reclaim(path: Path) -> None:
    """Have the space of destroyed subvolumes given back soon, rather than within the usual half minute."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SYNC)
    finally:
        os.close(fd)


def _call(request: int, path: Path, fd: int = 0) -> None:
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
