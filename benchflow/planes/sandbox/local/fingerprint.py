"""Whether this host is still the one that a layer was built on: its packages and programs, by their times.

Cheap enough to be asked at every start: nothing big is read. What changes every day without changing a program (/etc,
logs, caches, what programs write below /opt) is left out.
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
"""The package managers' own lists: files by size and time, pacman's by the time of its directory."""

DIRECTORIES = (
    *("bin", "sbin", "lib", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/libexec"),
    *("usr/local/lib", "usr/local/lib64", "usr/lib/node_modules", "usr/local/lib/node_modules", "opt"),
    *("etc/alternatives", "usr/local/share/ca-certificates"),
)

PATTERNS = (
    *("usr/lib/*-linux-*", "usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages"),
    *("usr/lib64/python3*/*-packages", "usr/local/lib64/python3*/*-packages", "opt/*/bin", "opt/*/lib"),
)

LISTED = ("usr/local/bin", "usr/local/sbin")
"""Where programs are put by hand, often over the old one, which leaves the directory's time as it was."""


def host_fingerprint(root: Path = Path("/")) -> str:
    """Hex digest that changes when packages or programs of the host change."""
    total = hashlib.sha256(f"{platform.machine()}\n".encode())
    total.update(_release(root))
    for line in (*_directories(root), *_packages(root), *_programs(root)):
        total.update(os.fsencode(line) + b"\n")
    return total.hexdigest()


def _release(root: Path) -> bytes:
    # The one in /etc is mostly a link to the other.
    for name in ("usr/lib/os-release", "etc/os-release"):
        if (root / name).is_file():
            return (root / name).read_bytes()
    return b""


def _packages(root: Path) -> Iterator[str]:
    for name in PACKAGES:
        yield from _stamp(root, name, size=name != "var/lib/pacman/local")


def _directories(root: Path) -> Iterator[str]:
    found = (match for pattern in PATTERNS for match in glob.iglob(pattern, root_dir=root))  # noqa: PTH207
    for name in (*DIRECTORIES, *sorted(found)):
        yield from _stamp(root, name, size=False)


def _programs(root: Path) -> Iterator[str]:
    for directory in LISTED:
        if (root / directory).is_dir():
            with os.scandir(root / directory) as found:
                for name in sorted(entry.name for entry in found):
                    yield from _stamp(root, f"{directory}/{name}")


def _stamp(root: Path, name: str, *, size: bool = True) -> Iterator[str]:
    """When, and if asked how long: a directory's size depends on its filesystem's mood. Nothing when it is missing."""
    try:
        status = os.lstat(f"{root}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return
    yield f"{name} {status.st_mtime_ns} {status.st_size if size else ''}"
