"""What is mounted where, as the kernel tells it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo. device: `major:minor`, the same for all mounts of one filesystem.

    flags: of the mount. options: of the filesystem; a cgroup v1 hierarchy names its controllers there.
    """

    number: int
    device: str
    point: str
    kind: str
    source: str
    flags: frozenset[str]
    options: frozenset[str]

    @property
    def writable(self) -> bool:
        return "rw" in self.flags and "rw" in self.options


def parse(table: str) -> list[Mount]:
    """The mounts of a mountinfo text, in its order: where one covers another, the later one is seen."""
    mounts = []
    for line in table.splitlines():
        # Optional fields of any number end with a dash of their own.
        left, _, right = line.partition(" - ")
        number, _, device, _, point, flags, *_ = left.split(" ")
        kind, source, options = right.split(" ")[:3]
        mounts.append(
            Mount(
                number=int(number),
                device=device,
                point=_plain(point),
                kind=kind,
                source=_plain(source),
                flags=frozenset(flags.split(",")),
                options=frozenset(options.split(",")),
            )
        )
    return mounts


def mounts() -> list[Mount]:
    """All mounts that this process sees."""
    return parse(Path("/proc/self/mountinfo").read_text())


def mount_of(path: Path) -> Mount:
    """The mount that a path lies on. Raises `FileNotFoundError`."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        told = Path(f"/proc/self/fdinfo/{fd}").read_text()
        number = int(told.partition("mnt_id:")[2].split()[0])
        # Asked while the descriptor keeps the mount from going away.
        return next(mount for mount in mounts() if mount.number == number)
    except StopIteration:
        raise FileNotFoundError(f"{path} lies on no mount that can be seen from here") from None
    finally:
        os.close(fd)


def _plain(text: str) -> str:
    """Space, tab, newline and backslash are written in octal."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
