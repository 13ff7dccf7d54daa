"""What an environment is made with: its sandbox, and what is kept of its world on this host and in the sandbox."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from pydantic import ValidationError

from benchflow.contracts.environment import BASELINE, StateFile, StateSnapshot
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import StateError
from benchflow.planes.environment.state import SNAPSHOTS
from benchflow.planes.sandbox.background import start_once
from benchflow.store import write_atomic

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

# $1: the directory of a snapshot; nothing in it is another user's.
_MAKE = 'umask 077; rm -rf -- "$1" && mkdir -p -- "$1"'


async def _is_healthy() -> None:
    """Wait for nothing."""


@dataclass(frozen=True)
class WorldContext:
    """The contract's `EnvironmentContext`."""

    sandbox: Sandbox
    task: str
    records: Path
    env: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""

    wait_healthy: Callable[[], Awaitable[None]] = _is_healthy
    """Waits for what the task wants to be healthy before its agent begins."""

    async def start_service(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start a command of the world, unless it was started and not stopped since, and leave it running."""
        key = self._service_key(name)
        await start_once(self.sandbox, key, command, {**self.env, **(env or {})})
        await self.sandbox.mark_baseline(key)

    async def stop_service(self, name: str) -> None:
        """Kill a service with all that it started."""
        key = self._service_key(name)
        if await self.sandbox.was_started(key):
            await self.sandbox.kill_once(key)
            # What was started once under a key is not started under it again.
            write_atomic(self.records / f"stopped-{key}", b"")

    def _service_key(self, name: str) -> str:
        """Return the key under which a service runs, or is to be started. It is the sandbox's, and no episode's."""
        number = 1
        while (self.records / f"stopped-service-{_checked(name)}-{number}").exists():
            number += 1
        return f"service-{name}-{number}"

    # --- snapshots -------------------------------------------------------------------------------------------

    async def save_snapshot(self, name: str, files: Mapping[str, bytes]) -> StateSnapshot:
        """Keep files in the sandbox as a snapshot, unless it is there."""
        found = await self.find_snapshot(name)
        if found is not None:
            return found
        # Of a name that no other attempt uses: one that was given up as lost may still be writing.
        fence = token_hex(16)
        began, directory = time.time(), f"{SNAPSHOTS}/{name}-{fence[:8]}"
        made = await self.sandbox.control(_MAKE, directory)
        if made.return_code != 0:
            raise StateError(f"the snapshot {name!r} could not be made", log_tail=made.stderr[-2000:] or None)
        for file, content in files.items():
            await self.sandbox.write_file(f"{directory}/{_checked(file)}", content, mode=0o600)
        kept = tuple(
            StateFile(
                path=file,
                present=True,
                file=file,
                sha256=hashlib.sha256(content).hexdigest(),
                size=len(content),
                mode=0o600,
            )
            for file, content in files.items()
        )
        snapshot = StateSnapshot(
            name=name,
            directory=directory,
            fence=fence,
            files=kept,
            taken_at=began,
            seconds=time.time() - began,
        )
        return self._record(f"snapshot-{name}", snapshot)

    async def find_snapshot(self, name: str) -> StateSnapshot | None:
        """Return what was saved under a name in this sandbox."""
        return self._read(f"snapshot-{_checked(name)}")

    async def load_snapshot(self, snapshot: StateSnapshot) -> dict[str, bytes]:
        """Return the files of a snapshot. Raises `StateError` for one that is not what it was."""
        found = {}
        for file in snapshot.files:
            try:
                content = await self.sandbox.read_bytes(f"{snapshot.directory}/{file.file}")
            except FileNotFoundError:
                content = b""
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise StateError(
                    f"its copy in the snapshot {snapshot.name!r} is not the one that was taken",
                    key=file.path,
                    remedy="keep the sandbox's processes from the files of a snapshot, and take it again",
                )
            found[file.path] = content
        return found

    # --- the baseline ----------------------------------------------------------------------------------------

    async def keep_baseline(self, capture: Callable[[str], Awaitable[StateSnapshot]]) -> StateSnapshot:
        """Return the episode's baseline, captured the first time."""
        found = self._read(self._baseline)
        if found is not None:
            return found
        await self.wait_healthy()
        return self.inherit_baseline(await capture(self._baseline))

    def baseline(self) -> StateSnapshot:
        """Return the episode's baseline."""
        found = self._read(self._baseline)
        if found is None:
            raise StateError(
                "no baseline was captured", key="reset", remedy="end `provision` with `capture_baseline()`"
            )
        return found

    def inherit_baseline(self, baseline: StateSnapshot) -> StateSnapshot:
        """Record the episode's baseline unless it has one: in a copy of a sandbox, its original's. Return it."""
        return self._record(self._baseline, baseline)

    @property
    def _baseline(self) -> str:
        return f"{self.namespace}{BASELINE}"

    def _record(self, name: str, snapshot: StateSnapshot) -> StateSnapshot:
        """Record a snapshot under a name that has none, and return the one that the name has now."""
        write_atomic(self.records / f"{name}.json", snapshot.model_dump_json().encode(), replaces=False)
        found = self._read(name)
        assert found is not None
        return found

    def _read(self, name: str) -> StateSnapshot | None:
        try:
            return StateSnapshot.model_validate_json((self.records / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StateError("is no record of a snapshot", file=str(self.records / f"{name}.json")) from error


def _checked(name: str) -> str:
    """Return a name that is a file's. Raises `StateError`."""
    if not _FILE_NAME.fullmatch(name):
        raise StateError(
            f"{name!r} can't be a name here",
            remedy="use up to 200 letters, digits, '-', '_' and '.', and begin with a letter or digit",
        )
    return name
