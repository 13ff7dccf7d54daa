"""This host: its id, its state directory, and its capacity in sandboxes.

All state is in files of the state directory, because any process may die at any moment.
"""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import stat
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchflow.contracts.operator_options import CAPACITY_VARIABLE
from benchflow.errors import ConfigError, HostFullError
from benchflow.host_files import (
    hold_lock,
    lock,
    make_private_directory,
    open_fd,
    overwrite,
    raise_storage_errors,
    write_atomic,
)
from benchflow.paths import StatePaths

MAX_LINKS = 40
"""Maximum number of links on the way to a directory, as in the kernel."""


def require_own_place(path: Path, *, key: str) -> None:
    """Raise `ConfigError` if another user could replace a directory.

    The rules are those of sshd's StrictModes: the directory, all its parents, and links on the way belong to this user
    or to root, and nobody else can write to them. A directory that all users can write to is allowed if its sticky bit
    is set: others cannot rename this user's files there. Missing directories are allowed.

    Args:
        path: The directory.
        key: Option or variable that names it, for the error.
    """
    at, left, links = Path("/"), list(path.absolute().parts[1:]), 0
    while (status := _read_status(at)) is not None:
        if problem := _find_foreign_control(status):
            raise ConfigError(
                f"{at} {problem}, who could put something else in the place of what is below it",
                file=str(path),
                key=key,
                remedy="name a directory of your own that is below directories to which only you and root can write",
            )
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise ConfigError("leads through too many links", file=str(path), key=key)
            target = at.readlink()
            at, left = at.parent, [*target.parts, *left]
        if not left:
            return
        part = left.pop(0)
        at = Path("/") if part == "/" else at.parent if part == ".." else at / part


def _read_status(path: Path) -> os.stat_result | None:
    """Return the status of a path itself; None if it does not exist."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _find_foreign_control(status: os.stat_result) -> str | None:
    """Return the reason why others than this user and root control a directory or link; None if they do not."""
    if status.st_uid not in (0, os.geteuid(), _read_unmapped_user()):
        return f"belongs to user {status.st_uid}"
    # The modes of a link have no meaning.
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "can be written by all users"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"can be written by group {status.st_gid}"
    return None


def _read_unmapped_user() -> int:
    """Return the id of unmapped users in a user namespace, such as the owner of `/`; root's id outside of one.

    Inside, the real owner of such a directory cannot be determined. The namespace's user has no more rights there than
    outside.
    """
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        unmapped = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except FileNotFoundError:
        return 0
    return 0 if any(int(line.split()[2]) == 2**32 - 1 for line in lines) else unmapped


def _is_private_group(gid: int) -> bool:
    """Return whether a group has no members but this user or root, as the user groups that many systems create."""
    try:
        group = grp.getgrgid(gid)
        users = [pwd.getpwuid(uid).pw_name for uid in (0, os.geteuid())]
    except KeyError:
        return gid in (0, os.geteuid())
    return group.gr_name in users and set(group.gr_mem) <= set(users)


def make_state_private(paths: StatePaths) -> None:
    """Make the state directory, or restrict it to its user: earlier versions made it readable by all.

    Raises:
        ConfigError: It belongs to another user, or another user could replace it.
    """
    require_own_place(paths.root, key="BENCHFLOW_STATE_DIR")
    with raise_storage_errors(paths.root):
        make_private_directory(paths.root)
        found = paths.root.stat()
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            owner = f"belongs to user {found.st_uid}" if found.st_uid != os.geteuid() else "is shared by all users"
            raise ConfigError(
                f"the state directory {owner}",
                key="BENCHFLOW_STATE_DIR",
                file=str(paths.root),
                remedy="name a directory of your own, which need not exist",
            )
        if found.st_mode & 0o077:
            paths.root.chmod(0o700)


def read_host_id(paths: StatePaths) -> str:
    """Return the id of this host, which is made once and kept in a file of the state directory."""
    with hold_lock(paths.root / "host-id.lock"):
        # After a power cut, the file of an earlier version may be empty.
        if not paths.host_id.exists() or not paths.host_id.read_text().strip():
            write_atomic(paths.host_id, uuid.uuid4().hex[:12].encode())
        return paths.host_id.read_text().strip()


_RECORD_LENGTH = 1024
"""Bytes of a slot's record, padded with blanks."""


class SlotOwner(NamedTuple):
    """Workflow that a slot belongs to: the reaper frees the slot after its end."""

    workflow: str
    """Workflow id."""

    run: str
    """Run id of its first run."""


class HostSlots:
    """Capacity of this host in sandboxes: one file per taken slot, shared by all worker processes."""

    def __init__(self, directory: Path, limit: int, wait_sec: float) -> None:
        """Make it.

        Args:
            directory: Directory of the slots' files.
            limit: Maximum number of sandboxes.
            wait_sec: Seconds for which `wait` waits.
        """
        self.directory = directory
        self.limit = limit
        self.wait_sec = wait_sec
        self._freed = asyncio.Event()

    def take(self, name: str, attempt: int = 1, owner: SlotOwner | None = None) -> bool:
        """Take a slot for the sandbox `name`, or retain its own if it is not lent. Return False if none is free.

        The slot records its owner, and the newest attempt that took it.

        Args:
            name: Name of the sandbox, and of its slot.
            attempt: Number of the attempt.
            owner: Workflow that owns the slot; None for the recorded one.
        """
        with self._locked(), raise_storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            slot = self.directory / name
            counted = self._counted()
            if name not in counted and len(counted) >= self.limit:
                return False
            is_new = not slot.exists()
            record: dict[str, Any] = {"attempt": max(attempt, self._attempt(slot))}
            owner = owner or self.owner(name)
            try:
                _write_slot_record(slot, record | (owner._asdict() if owner is not None else {}))
            except OSError:
                if is_new:
                    slot.unlink(missing_ok=True)
                raise
            self._lent(name).unlink(missing_ok=True)
            return True

    @contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """Hold a slot while this process works in it, so that `free_unused` does not free it.

        The kernel releases the lock when the process dies.
        """
        with hold_lock(self.directory / name, shared=True):
            yield

    def lend(self, name: str) -> None:
        """Let other sandboxes use the slot of one that is idle, such as a frozen one; `take` takes it back."""
        with self._locked():
            if (self.directory / name).exists():
                self._lent(name).touch()
        self._freed.set()

    def _locked(self) -> AbstractContextManager[int | None]:
        return hold_lock(self.directory.with_suffix(".lock"))

    def _lent(self, name: str) -> Path:
        return self.directory / f".{name}.lent"

    def _counted(self) -> list[str]:
        """Return the slots that count against the limit: taken and not lent."""
        return [name for name in self.taken() if not self._lent(name).exists()]

    async def wait(self, name: str, attempt: int = 1, owner: SlotOwner | None = None) -> None:
        """Take a slot as soon as one is free.

        Raises:
            HostFullError: None became free in time; another host may be tried.
        """
        deadline = asyncio.get_running_loop().time() + self.wait_sec
        while not self.take(name, attempt, owner):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise HostFullError(f"all {self.limit} sandbox slots of this host are taken", key=CAPACITY_VARIABLE)
            self._freed.clear()
            try:
                # Another process of this host may free a slot without setting our event: poll every second.
                await asyncio.wait_for(self._freed.wait(), min(1.0, left))
            except TimeoutError:
                continue

    def is_current(self, name: str, attempt: int) -> bool:
        """Return whether no later attempt has taken the slot: False fences off an attempt that was given up as lost."""
        return self._attempt(self.directory / name) <= attempt

    def owner(self, name: str) -> SlotOwner | None:
        """Return the recorded owner of a slot; None if the slot is free, or its record has none."""
        record = _read_slot_record(self.directory / name)
        return SlotOwner(record["workflow"], record["run"]) if "run" in record else None

    @staticmethod
    def _attempt(slot: Path) -> int:
        return int(_read_slot_record(slot).get("attempt", 0))

    def free(self, name: str) -> None:
        """Free a slot; a free one is success."""
        (self.directory / name).unlink(missing_ok=True)
        self._lent(name).unlink(missing_ok=True)
        self._freed.set()

    def free_unused(self, name: str) -> bool:
        """Free a slot unless a living process holds it with `in_use`. Return whether it is free."""
        with self._locked():
            with suppress(FileNotFoundError), open_fd(self.directory / name, os.O_RDONLY) as slot:
                if not lock(slot, wait_sec=0):
                    return False
                self.free(name)
            return True

    def taken(self) -> list[str]:
        """Return the names of all taken slots, lent ones included."""
        if not self.directory.is_dir():
            return []
        return sorted(slot.name for slot in self.directory.iterdir() if not slot.name.startswith("."))


def _write_slot_record(slot: Path, record: dict[str, Any]) -> None:
    """Overwrite a slot's record in one write of fixed length: a full disk leaves the old record.

    The file is not replaced, since `in_use` holds a lock on this very file.
    """
    overwrite(slot, json.dumps(record).ljust(_RECORD_LENGTH).encode())


def _read_slot_record(slot: Path) -> dict[str, Any]:
    """Return the record of a slot; empty if the slot is free, or a full disk has cut off the record."""
    try:
        record = json.loads(slot.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    # Earlier versions wrote the number of the attempt alone.
    return record if isinstance(record, dict) else {"attempt": record}
