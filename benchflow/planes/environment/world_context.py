"""The context that an environment is constructed with: sandbox, services, snapshots, and records on this host."""

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
from benchflow.host_files import write_atomic
from benchflow.planes.environment.world_state import SNAPSHOTS
from benchflow.planes.sandbox.background import start_once

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

# $1: the directory of a snapshot, which is made anew, for root alone.
_MAKE = 'umask 077; rm -rf -- "$1" && mkdir -p -- "$1"'


async def _skip_wait() -> None:
    """Return at once: there is no healthcheck to wait for."""


@dataclass(frozen=True)
class WorldContext:
    """Implementation of the contract's `EnvironmentContext`."""

    sandbox: Sandbox
    task: str
    """Id of the task."""

    records: Path
    """Directory on this host for the environment's records."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the world's processes."""

    namespace: str = ""
    """Prefix of this rollout's names in a sandbox that rollouts share; else empty."""

    wait_healthy: Callable[[], Awaitable[None]] = _skip_wait
    """Waits for the task's healthcheck, which must succeed before its agent begins."""

    async def start_service(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start a command of the world, unless it was started and not stopped since, and leave it running.

        Args:
            name: Name of the service in this sandbox.
            command: Argv of the service.
            env: Variables besides those of the context.
        """
        key = self._choose_service_key(name)
        await start_once(self.sandbox, key, command, {**self.env, **(env or {})})
        await self.sandbox.mark_baseline(key)

    async def stop_service(self, name: str) -> None:
        """Kill a service and all its descendants. Success if it was not started."""
        key = self._choose_service_key(name)
        if await self.sandbox.was_started(key):
            await self.sandbox.kill_once(key)
            # A key starts a command once only: this record lets the next start use another key.
            write_atomic(self.records / f"stopped-{key}", b"")

    def _choose_service_key(self, name: str) -> str:
        """Return the `exec_once` key of a service that runs or is to be started.

        It has no rollout's namespace: services belong to the sandbox. Raise `StateError` for an unusable name.
        """
        number = 1
        while (self.records / f"stopped-service-{_check_name(name)}-{number}").exists():
            number += 1
        return f"service-{name}-{number}"

    # --- snapshots -------------------------------------------------------------------------------------------

    async def save_snapshot(self, name: str, files: Mapping[str, bytes]) -> StateSnapshot:
        """Save files in the sandbox as a snapshot; return one of this name that exists as it is.

        Args:
            name: Name of the snapshot.
            files: Contents of the files, by name without `/`.

        Raises:
            StateError: A name is unusable, or the snapshot's directory cannot be made.
        """
        found = await self.find_snapshot(name)
        if found is not None:
            return found
        # A directory that no other attempt uses: an attempt that was given up as lost may still be writing.
        fence = token_hex(16)
        began, directory = time.time(), f"{SNAPSHOTS}/{name}-{fence[:8]}"
        made = await self.sandbox.control(_MAKE, directory)
        if made.return_code != 0:
            raise StateError(f"the snapshot {name!r} could not be made", log_tail=made.stderr[-2000:] or None)
        for file, content in files.items():
            await self.sandbox.write_file(f"{directory}/{_check_name(file)}", content, mode=0o600)
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
        """Return the snapshot that was saved under a name in this sandbox; None if there is none."""
        return self._read(f"snapshot-{_check_name(name)}")

    async def load_snapshot(self, snapshot: StateSnapshot) -> dict[str, bytes]:
        """Return the contents of a snapshot's files. Raise `StateError` if one is missing or has changed."""
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
        """Return the rollout's baseline. The first time, wait for the task's healthcheck and capture it.

        Args:
            capture: Takes a snapshot of the name that it is called with.
        """
        found = self._read(self._baseline)
        if found is not None:
            return found
        await self.wait_healthy()
        return self.inherit_baseline(await capture(self._baseline))

    def baseline(self) -> StateSnapshot:
        """Return the rollout's baseline. Raise `StateError` if none was captured."""
        found = self._read(self._baseline)
        if found is None:
            raise StateError(
                "no baseline was captured", key="reset", remedy="end `provision` with `capture_baseline()`"
            )
        return found

    def inherit_baseline(self, baseline: StateSnapshot) -> StateSnapshot:
        """Record the rollout's baseline, unless it has one, and return the recorded one.

        A copy of a sandbox gets the baseline of its original so.
        """
        return self._record(self._baseline, baseline)

    @property
    def _baseline(self) -> str:
        return f"{self.namespace}{BASELINE}"

    def _record(self, name: str, snapshot: StateSnapshot) -> StateSnapshot:
        """Record a snapshot under a name, unless the name has one, and return the recorded one."""
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


def _check_name(name: str) -> str:
    """Return the name unchanged. Raise `StateError` if it cannot be a file's name."""
    if not _FILE_NAME.fullmatch(name):
        raise StateError(
            f"{name!r} can't be a name here",
            remedy="use up to 200 letters, digits, '-', '_' and '.', and begin with a letter or digit",
        )
    return name
