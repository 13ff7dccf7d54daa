"""A fingerprint of the host's packages and programs, by which a layer that was built over other ones is recognized.

It is computed at every start of a sandbox, so it is cheap: it has times and sizes, and no big file is read. Left out
is what changes every day without a change of programs: /etc, logs, caches, files that programs write below /opt.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    *("var/lib/dpkg/status", "var/lib/dpkg/diversions", "var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages"),
    *("var/lib/rpm/Packages.db", "usr/lib/sysimage/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/Packages.db"),
    *("lib/apk/db/installed", "usr/lib/apk/db/installed", "var/lib/pacman/local"),
)
"""The package managers' databases: files by size and time, pacman's by the time of its directory."""

DIRECTORIES = (
    *("bin", "sbin", "lib", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/libexec"),
    *("usr/local/lib", "usr/local/lib64", "usr/lib/node_modules", "usr/local/lib/node_modules", "opt"),
    *("etc/alternatives", "usr/local/share/ca-certificates"),
)
"""Directories of programs and libraries, by their times."""

PATTERNS = (
    *("usr/lib/*-linux-*", "usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages"),
    *("usr/lib64/python3*/*-packages", "usr/local/lib64/python3*/*-packages", "opt/*/bin", "opt/*/lib"),
)
"""More such directories, as glob patterns."""

LISTED = ("usr/local/bin", "usr/local/sbin")
"""Directories whose files count one by one: a program that overwrites its old version leaves their time as it was."""


def compute_host_fingerprint(root: Path = Path("/")) -> str:
    """Return a hex digest that changes when packages or programs of the host change.

    Args:
        root: Root directory of the host.
    """
    total = hashlib.sha256(f"{platform.machine()}\n".encode())
    total.update(_read_release(root))
    for line in (*_stamp_directories(root), *_packages(root), *_stamp_programs(root)):
        total.update(os.fsencode(line) + b"\n")
    return total.hexdigest()


def _read_release(root: Path) -> bytes:
    """Return the content of os-release; empty if there is none."""
    # /etc/os-release is mostly a link to the one in /usr/lib.
    for name in ("usr/lib/os-release", "etc/os-release"):
        if (root / name).is_file():
            return (root / name).read_bytes()
    return b""


def _packages(root: Path) -> Iterator[str]:
    """Yield a stamp of each package database that exists."""
    for name in PACKAGES:
        yield from _stamp(root, name, size=name != "var/lib/pacman/local")


def _stamp_directories(root: Path) -> Iterator[str]:
    """Yield a stamp of each directory of programs that exists."""
    found = (match for pattern in PATTERNS for match in glob.iglob(pattern, root_dir=root))  # noqa: PTH207
    for name in (*DIRECTORIES, *sorted(found)):
        yield from _stamp(root, name, size=False)


def _stamp_programs(root: Path) -> Iterator[str]:
    """Yield a stamp of each file in `LISTED`."""
    for directory in LISTED:
        if (root / directory).is_dir():
            with os.scandir(root / directory) as found:
                for name in sorted(entry.name for entry in found):
                    yield from _stamp(root, f"{directory}/{name}")


def _stamp(root: Path, name: str, *, size: bool = True) -> Iterator[str]:
    """Yield name and time of a path, and its size if asked for; nothing if it is missing.

    The size of a directory does not count: it depends on the filesystem and on the directory's history.
    """
    try:
        status = os.lstat(f"{root}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return
    yield f"{name} {status.st_mtime_ns} {status.st_size if size else ''}"
