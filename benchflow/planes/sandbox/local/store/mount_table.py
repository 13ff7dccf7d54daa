"""The mount table, as the kernel reports it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class MountEntry:
    """A line of /proc/self/mountinfo."""

    number: int
    """Id of the mount."""
    device: str
    """Device as `major:minor`, the same for all mounts of one filesystem."""
    point: str
    """Mount point."""
    kind: str
    """Type of the filesystem."""
    source: str
    """Source, as given to mount(8): a device or any name."""
    flags: frozenset[str]
    """Options of the mount."""
    options: frozenset[str]
    """Options of the filesystem; a cgroup v1 hierarchy names its controllers there."""

    @property
    def writable(self) -> bool:
        """Return whether mount and filesystem are read-write."""
        return "rw" in self.flags and "rw" in self.options


def parse(table: str) -> list[MountEntry]:
    """Parse a mountinfo text, and return its mounts in order: where one covers another, the later is seen."""
    mounts = []
    for line in table.splitlines():
        # The optional fields, of any number, end with a single dash.
        left, _, right = line.partition(" - ")
        number, _, device, _, point, flags, *_ = left.split(" ")
        kind, source, options = right.split(" ")[:3]
        mounts.append(
            MountEntry(
                number=int(number),
                device=device,
                point=_decode(point),
                kind=kind,
                source=_decode(source),
                flags=frozenset(flags.split(",")),
                options=frozenset(options.split(",")),
            )
        )
    return mounts


def read_mounts() -> list[MountEntry]:
    """Return all mounts that this process sees."""
    return parse(Path("/proc/self/mountinfo").read_text())


def find_mount(path: Path) -> MountEntry:
    """Return the mount that a path lies on. Raise `FileNotFoundError` if path or mount can't be seen."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        told = Path(f"/proc/self/fdinfo/{fd}").read_text()
        number = int(told.partition("mnt_id:")[2].split()[0])
        # Looked up while the open descriptor keeps the mount in place.
        return next(mount for mount in read_mounts() if mount.number == number)
    except StopIteration:
        raise FileNotFoundError(f"{path} lies on no mount that can be seen from here") from None
    finally:
        os.close(fd)


def _decode(text: str) -> str:
    """Decode the octal escapes of space, tab, newline and backslash."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
