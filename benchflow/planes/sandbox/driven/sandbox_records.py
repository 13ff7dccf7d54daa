"""Records of a sandbox on this host: the commands that ran once in it, and the processes that belong to its world.

They are keyed by the sandbox's handle, which no later sandbox of the same name has, and are removed with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from benchflow.errors import SandboxLostError
from benchflow.host_files import write_record
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.outcome import KILLED

_BASELINE, _RESTARTED = "baseline.json", "restarted.json"


class SandboxRecords:
    """The records of one sandbox."""

    def __init__(self, handle: str) -> None:
        """Make it. handle: handle of the sandbox, as in its `SandboxRef`."""
        self.directory = find_state_dir() / "exec" / handle

    # --- commands that run once ----------------------------------------------------------------------

    def command(self, key: str) -> Path:
        """Return the file for the command under a key, which need not exist; its stem is the process id.

        A file that an earlier version wrote has another name, and is returned if it exists.
        """
        file = self.directory / f"{make_process_id(key)}.json"
        earlier = self.directory / f"{_earlier_name(key)}.json"
        return earlier if earlier.exists() else file

    def mark(self, process_id: str) -> str:
        """Return the value of the marker variable in a command's processes.

        It is the process id; a command that an earlier version started has a nonce in its record.
        """
        try:
            return str(json.loads((self.directory / f"{process_id}.json").read_text()).get("nonce", process_id))
        except FileNotFoundError:
            return process_id

    def end_commands(self, *, but: str | None = None) -> None:
        """Record that all processes of the sandbox have ended, by a kill if no exit code was recorded.

        The baseline is removed with them, so that the world's processes are recorded anew.

        Args:
            but: Key of a command to forget, so that it can be started again.
        """
        for name in (_BASELINE, _RESTARTED):
            (self.directory / name).unlink(missing_ok=True)
        dropped = self.command(but) if but is not None else None
        for file in self.directory.glob("*.json"):
            record = json.loads(file.read_text())
            if file == dropped:
                file.unlink()
            elif "return_code" not in record:
                write_record(file, record | {"return_code": KILLED})

    # --- processes -----------------------------------------------------------------------------------

    @property
    def baseline(self) -> list[Any]:
        """The processes that belong to the world, as rows that `World` writes; empty if none were recorded."""
        try:
            return list(json.loads((self.directory / _BASELINE).read_text())["baseline"])
        except FileNotFoundError:
            return []

    @baseline.setter
    def baseline(self, rows: list[Any]) -> None:
        write_record(self.directory / _BASELINE, {"baseline": rows})

    @property
    def restarted(self) -> set[tuple[int, int, str]]:
        """The programs that services restart after each kill: pid and start time of the service, and the arguments."""
        try:
            return {tuple(row) for row in json.loads((self.directory / _RESTARTED).read_text())["restarted"]}
        except FileNotFoundError:
            return set()

    @restarted.setter
    def restarted(self, rows: set[tuple[int, int, str]]) -> None:
        write_record(self.directory / _RESTARTED, {"restarted": sorted(rows)})

    def forget(self) -> None:
        """Remove all records."""
        shutil.rmtree(self.directory, ignore_errors=True)


def read_command(file: Path) -> dict[str, Any]:
    """Return the record of a command. Raise `SandboxLostError` if it was removed with its sandbox."""
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise SandboxLostError("the sandbox was removed during a command") from error
    return record


def settle_command(file: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record of a command that has ended, unless one with its end exists. Return the record that counts."""
    first = read_command(file)
    if "return_code" in first:
        return first
    write_record(file, record)
    return record


def make_process_id(key: str) -> str:
    """Return the id of the process for a key: a readable part of the key, and a digest of it."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", key)[:40]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _earlier_name(key: str) -> str:
    """Return the process id that an earlier version made of a key."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", key)[-60:]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
