"""Records of a sandbox on disk, each written before the resource that it describes is made.

`spec.json` comes first, and its labels name the owner; `running.json` has the first process and the network.
Removing the records' directory is the last step of removing the sandbox, so that a crash in between is found.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.host_files import write_record

M = TypeVar("M", bound=Model)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File whose content is another one after each boot of the machine."""


class Running(Model):
    """A started sandbox."""

    handle: str
    """Id of the sandbox, by which it differs from an earlier one of its name."""
    pid: int
    """Pid of its first process, on the host."""
    started: int
    """Start time of its first process, in clock ticks since boot, since a pid alone may be reused."""
    boot: str
    """Boot id of the machine (`read_boot_id`) when it was started."""
    workdir: str
    """Absolute path of its workspace."""
    link: str | None = None
    """Name of its network interface on the host; None without a network."""
    address: str | None = None
    """IPv4 address at which the host reaches it; None without a network."""
    warnings: tuple[str, ...] = ()
    """Warnings of its image, and limits that are not enforced."""


class LocalRecords:
    """The records of one sandbox.

    Args:
        directory: Directory of the records, which need not exist.
    """

    def __init__(self, directory: Path) -> None:
        """Make it."""
        self.directory = directory

    @property
    def spec(self) -> SandboxSpec | None:
        """Return the sandbox's specification; None if there is no valid record."""
        return _read(self.directory / "spec.json", SandboxSpec)

    @spec.setter
    def spec(self, spec: SandboxSpec) -> None:
        write_record(self.directory / "spec.json", spec.model_dump(mode="json"))

    @property
    def running(self) -> Running | None:
        """Return the started sandbox; None if it was not started since the last boot of this machine."""
        found = _read(self.directory / "running.json", Running)
        return found if found is not None and found.boot == read_boot_id() else None

    @running.setter
    def running(self, running: Running | None) -> None:
        if running is None:
            (self.directory / "running.json").unlink(missing_ok=True)
        else:
            write_record(self.directory / "running.json", running.model_dump(mode="json"))

    @property
    def is_frozen(self) -> bool:
        """Return whether it was frozen on request, rather than left frozen by a process that died."""
        return (self.directory / "frozen").exists()

    @is_frozen.setter
    def is_frozen(self, is_frozen: bool) -> None:
        if is_frozen:
            write_record(self.directory / "frozen", {})
        else:
            (self.directory / "frozen").unlink(missing_ok=True)

    @property
    def exists(self) -> bool:
        """Return whether the sandbox has a directory of records."""
        return self.directory.is_dir()

    def remove(self) -> None:
        """Remove all records. Missing is success."""
        shutil.rmtree(self.directory, ignore_errors=True)


def read_all_records(directory: Path) -> Iterator[tuple[str, LocalRecords]]:
    """Yield the name and the records of each sandbox that has records below `directory`, by name."""
    if directory.is_dir():
        for place in sorted(directory.iterdir()):
            yield place.name, LocalRecords(place)


@functools.cache
def read_boot_id() -> str:
    """Return the kernel's id of this boot of the machine."""
    return _BOOT_ID.read_text().strip()


def _read(file: Path, kind: type[M]) -> M | None:
    """Parse a record; None if it is missing or invalid."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
