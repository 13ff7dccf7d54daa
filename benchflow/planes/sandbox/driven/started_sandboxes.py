"""Records of the sandboxes that were started over a driver on this host, by name: their spec and current handle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.host_files import write_record
from benchflow.paths import find_state_dir


class StartedSandboxRecord(Model):
    """The record of a started sandbox."""

    spec: SandboxSpec
    """Specification that it was started with; after a restore or fork, with the image of that."""

    handle: str
    """Handle in its `SandboxRef`. It never changes."""

    driver_handle: str
    """The driver's handle of it. A restore by way of a new sandbox changes it."""

    restoring: ImageRef | None = None
    """Image of a restore that is under way; None otherwise."""

    capture: ImageRef | None = None
    """Capture that it was forked from, which is removed with the last sandbox that was; None otherwise."""


class StartedSandboxes:
    """The records of the sandboxes of one driver."""

    def __init__(self, provider: str) -> None:
        """Make it. provider: name of the driver."""
        self._provider = provider

    @property
    def _directory(self) -> Path:
        return find_state_dir() / "sandboxes" / self._provider

    def read(self, name: str) -> StartedSandboxRecord | None:
        """Return the record of the sandbox with a name; None if there is none."""
        try:
            return StartedSandboxRecord.model_validate_json(self._file(name).read_bytes())
        except (FileNotFoundError, ValidationError):
            # A power cut may have left a file without its content.
            return None

    def write(self, place: StartedSandboxRecord) -> None:
        """Write the record of a sandbox, in place of an earlier one of its name."""
        write_record(self._file(place.spec.name), place.model_dump(mode="json"))

    def forget(self, name: str) -> None:
        """Remove the record of the sandbox with a name. Success if there is none."""
        self._file(name).unlink(missing_ok=True)

    def all(self) -> Iterator[StartedSandboxRecord]:
        """Yield the records of all sandboxes."""
        for file in self._directory.glob("*.json"):
            if (place := self.read(file.stem)) is not None:
                yield place

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"
