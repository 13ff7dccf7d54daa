"""What is known of a sandbox outside of memory: a directory of files, written before what they speak of is made.

`spec.json` comes first and says whose it is; `running.json` says which processes and network it has. Removing the
directory is the last step of removing the sandbox, so that a crash in between is found.
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
from benchflow.planes.sandbox.records import write_record

M = TypeVar("M", bound=Model)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Running(Model):
    """A started sandbox. handle: tells it from an earlier one of its name; pid, started: of its first process; boot: of
    this machine; link: its network interface.
    """

    handle: str
    pid: int
    started: int
    boot: str
    workdir: str
    link: str | None = None
    address: str | None = None
    warnings: tuple[str, ...] = ()


class Records:
    """The records of one sandbox."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def spec(self) -> SandboxSpec | None:
        return _read(self.directory / "spec.json", SandboxSpec)

    @spec.setter
    def spec(self, spec: SandboxSpec) -> None:
        write_record(self.directory / "spec.json", spec.model_dump(mode="json"))

    @property
    def running(self) -> Running | None:
        """None when it was not started, or before the last boot of this machine."""
        found = _read(self.directory / "running.json", Running)
        return found if found is not None and found.boot == boot_id() else None

    @running.setter
    def running(self, running: Running | None) -> None:
        if running is None:
            (self.directory / "running.json").unlink(missing_ok=True)
        else:
            write_record(self.directory / "running.json", running.model_dump(mode="json"))

    @property
    def is_frozen(self) -> bool:
        """Whether it is to stand still, and was not left so by a process that died."""
        return (self.directory / "frozen").exists()

    @is_frozen.setter
    def is_frozen(self, is_frozen: bool) -> None:
        if is_frozen:
            write_record(self.directory / "frozen", {})
        else:
            (self.directory / "frozen").unlink(missing_ok=True)

    @property
    def exists(self) -> bool:
        return self.directory.is_dir()

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def all_records(directory: Path) -> Iterator[tuple[str, Records]]:
    """The records below a directory, by the sandboxes' names."""
    if directory.is_dir():
        for place in sorted(directory.iterdir()):
            yield place.name, Records(place)


@functools.cache
def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _read(file: Path, kind: type[M]) -> M | None:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
