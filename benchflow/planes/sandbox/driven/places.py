"""Which sandboxes were started over a driver on this host, by name: what each was started from, and its handle now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.paths import state_dir
from benchflow.planes.sandbox.records import write_record


class Place(Model):
    """A started sandbox, as this host knows it."""

    spec: SandboxSpec

    handle: str
    """What its `SandboxRef` has. It never changes."""

    driver_handle: str
    """What its driver knows it by. A restore that the driver does not do itself changes it."""

    restoring: ImageRef | None = None
    """The image that it is being started again from, while that is not done."""

    capture: ImageRef | None = None
    """The capture that it was forked from, which goes with the last sandbox that began from it."""


class Places:
    """The places of one driver."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    @property
    def _directory(self) -> Path:
        return state_dir() / "sandboxes" / self._provider

    def read(self, name: str) -> Place | None:
        """Return the place of a sandbox, None if this host knows of none."""
        try:
            return Place.model_validate_json(self._file(name).read_bytes())
        except (FileNotFoundError, ValidationError):
            # A power cut may have left its name and not its content.
            return None

    def write(self, place: Place) -> None:
        """Record a place."""
        write_record(self._file(place.spec.name), place.model_dump(mode="json"))

    def forget(self, name: str) -> None:
        """Remove the place of a sandbox."""
        self._file(name).unlink(missing_ok=True)

    def all(self) -> Iterator[Place]:
        """Yield all places."""
        for file in self._directory.glob("*.json"):
            if (place := self.read(file.stem)) is not None:
                yield place

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"
