"""Notes of this host's workers about an agent's process, in a directory that no sandbox mounts."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.host_files import create_atomic, raise_storage_errors

Message = dict[str, Any]
"""A JSON object."""


@dataclass(frozen=True)
class SessionFiles:
    """The directories on this host for the files of a sandbox's agent processes: for all of them, or for one."""

    notes: Path
    """Directory of the workers' notes, and of the sent messages. No sandbox sees it."""
    shared: Path
    """Directory that the sandbox mounts for the stdio journals, and may write. Opened by `ConfinedDirectory`."""
    name: str = "."
    """Path of the process's directory, relative to both of them. In `shared`, the sandbox may have replaced it by
    anything.
    """

    @classmethod
    def from_directory(cls, directory: Path) -> SessionFiles:
        """Return the files of all processes of a sandbox. directory: the sandbox's directory on this host."""
        return cls(directory / "notes", directory / "shared")

    def join(self, name: str) -> SessionFiles:
        """Return the files of the process, or of the group of processes, with a name below this one."""
        return SessionFiles(self.notes, self.shared, f"{self.name}/{name}".removeprefix("./"))

    @property
    def own_notes(self) -> Path:
        """The directory of this process's notes."""
        return self.notes / self.name


class Notes:
    """The notes in a directory, each a JSON object under a name."""

    def __init__(self, directory: Path) -> None:
        """Make it. The directory need not exist."""
        self.directory = directory

    def make(self) -> None:
        """Make the directory, readable by its owner alone."""
        with raise_storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write_once(self, name: str, content: Message) -> Message:
        """Write a note unless it exists, and return its content: of several writers the first one counts."""
        with raise_storage_errors(self.directory), suppress(FileExistsError):
            self._write(name, content, replaces=False)
        noted = self.read(name)
        assert noted is not None
        return noted

    def write(self, name: str, content: Message) -> None:
        """Write a note, in place of an earlier one."""
        with raise_storage_errors(self.directory):
            self._write(name, content, replaces=True)

    def _write(self, name: str, content: Message, *, replaces: bool) -> None:
        # Not `write_atomic`, which would make the directory of a session that was removed.
        with create_atomic(self.get_path(name), replaces=replaces) as file:
            file.write(json.dumps(content).encode())

    def get_path(self, name: str) -> Path:
        """Return the file of the note with a name."""
        return self.directory / f"{name}.json"

    def read(self, name: str) -> Message | None:
        """Return the note with a name; None if there is none."""
        try:
            content: Message = json.loads(self.get_path(name).read_text())
        except FileNotFoundError:
            return None
        return content
