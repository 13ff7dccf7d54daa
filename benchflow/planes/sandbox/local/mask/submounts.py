"""Mounts in the host's tree that differ from its root filesystem: an overlay's lower layer does not cross mounts.

A sandbox would see what lies below a mount point, not what the host sees there; and what a bind mount shows also lies
at its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
"""The kernel's mount table."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Shown:
    """A line of the mount table."""

    point: str
    """Absolute mount point on the host."""
    device: str
    """Device, as `major:minor`."""
    part: str
    """Path within the device that is mounted."""


class Submounts:
    """The mounts at and below a directory of the host. Paths are relative to it, without a leading slash.

    Args:
        root: The directory.
        table: Mount table.
    """

    def __init__(self, root: Path, table: Path = TABLE) -> None:
        """Read the mount table."""
        self._root = "" if root == Path("/") else str(root)
        # Of several mounts on one point, the last is seen.
        seen = {mount.point: mount for mount in map(_parse, table.read_text().splitlines())}
        self._seen = [seen[point] for point in sorted(seen, key=len, reverse=True)]
        self._base = self._holding(self._root or "/")

    def foreign(self) -> list[str]:
        """Return the mount points, outermost first, that show other files than the root's own filesystem has there."""
        inside = [mount for mount in reversed(self._seen) if mount.point.startswith(f"{self._root}/")]
        return [self._relative(mount.point) for mount in inside if mount != self._base and not self._same(mount)]

    def behind(self, path: str) -> str | None:
        """Return where the root's own filesystem has what a bind mount shows at `path`; None if it is nowhere else."""
        whole = f"{self._root}/{path}"
        mount = self._holding(whole)
        if mount.device != self._base.device or mount == self._base or self._same(mount):
            return None
        at = _join(mount.part, _make_relative(whole, mount.point))
        base = _join(self._base.part, _make_relative(self._root, self._base.point))
        return _make_relative(at, base) if _is_within(at, base) else None

    def _same(self, mount: Shown) -> bool:
        """Return whether a mount shows just what the root's filesystem has at its mount point."""
        expected = _join(self._base.part, _make_relative(mount.point, self._base.point))
        return mount.device == self._base.device and mount.part == expected

    def _holding(self, path: str) -> Shown:
        """Return the mount that a path lies on."""
        return next(mount for mount in self._seen if _is_within(path, mount.point))

    def _relative(self, point: str) -> str:
        return point[len(self._root) + 1 :]


def _parse(line: str) -> Shown:
    _, _, device, part, point, *_ = line.split(" ")
    return Shown(_decode(point), device, _decode(part))


def _decode(text: str) -> str:
    """Decode octal escapes."""
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), text)


def _is_within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies below it."""
    return directory == "/" or path == directory or path.startswith(f"{directory}/")


def _make_relative(path: str, directory: str) -> str:
    """Return a path relative to a directory that holds it."""
    return path[len(directory.rstrip("/")) :].strip("/")


def _join(directory: str, rest: str) -> str:
    return f"{directory.rstrip('/')}/{rest}" if rest else directory
