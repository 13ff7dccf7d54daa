"""The processes of a container as the daemon's host sees them, for when the daemon can't act on the container.

A root process inside may stop (SIGSTOP) the runtime's own process while it enters the container: that is in the
container's pid namespace before it executes the command. The daemon holds locks of the container meanwhile, so calls
about the container hang. The same happens if a container is frozen while an exec enters it, as when the process that
asked for both has died. SIGKILL from outside ends stopped and frozen processes, too, and frees the locks.

Nothing is found if the daemon is on another machine, or in another pid namespace than this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchflow.contracts.process_table import RunningProcess
from benchflow.planes.sandbox.host_table import make_unseen_row, read_process

_RUNTIMES = (b"runc", b"crun", b"youki")
"""Prefixes of the names of the processes by which runtimes enter a container, like `runc:[2:INIT]`."""


def has_stopped_entry(container: str) -> bool:
    """Return whether a process by which the runtime enters a container is stopped.

    It is in the pid namespace before it is in the control groups: until then, only its parent's arguments tell to which
    container it belongs.

    Args:
        container: Full id of the container.
    """
    for pid in _list_pids():
        with contextlib.suppress(OSError):
            head, _, tail = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")
            if not head.partition(b" (")[2].startswith(_RUNTIMES) or tail[:1] not in (b"T", b"t"):
                continue
            parent = Path(f"/proc/{int(tail.split()[1])}/cmdline").read_bytes()
            if container.encode() in parent or _is_in(container, pid):
                return True
    return False


def kill_all(container: str) -> None:
    """Send SIGKILL to all processes of a container, the first one included, with which the kernel ends all others.

    Only root may; for others, this does nothing.

    Args:
        container: Full id of the container.
    """
    freezers = set()
    for pid in _list_pids():
        with contextlib.suppress(OSError):
            if not _is_in(container, pid):
                continue
            handle = os.pidfd_open(pid)
            try:
                # The pid may have been reused. The handle's process can't change.
                if _is_in(container, pid):
                    freezers.add(_find_freezer(pid))
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    for freezer in freezers:
        # With cgroup v1, frozen processes receive the signal only once they are thawed.
        with contextlib.suppress(OSError):
            freezer.write_text("THAWED")


def read_processes(container: str, first: int) -> dict[int, RunningProcess] | None:
    """Return the processes of a container by their pids on this host; None if they can't be seen from here.

    All pids in the rows are those inside the container.

    Args:
        container: Full id of the container.
        first: Pid of its first process on the daemon's host.
    """
    found: dict[int, RunningProcess] = {}
    inside: dict[int, int] = {0: 0}
    sessions: dict[int, int] = {}
    try:
        members = _read_members(container, first)
        for pid in members if members is not None else _list_pids():
            if members is not None:
                # Counted even if it can't be read: a process that keeps forking and exiting is always gone by then.
                found[pid], inside[pid], sessions[pid] = make_unseen_row(pid), -pid, 0
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not _is_in(container, pid) or (process := read_process(pid)) is None:
                    continue
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("NS"))
                limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
                resident = next(line.split() for line in limits if line.startswith("Max resident set"))
                inside[pid] = int(numbers["NSpid"].split()[-1])
                sessions[pid] = int(numbers["NSsid"].split()[-1])
                found[pid] = replace(process, entered=resident[-2] != "unlimited")
    except (PermissionError, FileNotFoundError, ProcessLookupError, StopIteration):
        # The daemon is in another pid namespace, or the container has ended.
        return None
    if first not in found:
        return None
    return {
        pid: replace(process, pid=inside[pid], parent=inside.get(process.parent, 0), session=sessions[pid])
        for pid, process in found.items()
    }


def _read_members(container: str, first: int) -> list[int] | None:
    """Return the pids of a container's processes as of one moment; None if its control group is not visible here."""
    for line in Path(f"/proc/{first}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in (controllers, *controllers.split(","), "unified"):
            members = Path("/sys/fs/cgroup", mount, path.lstrip("/"), "cgroup.procs")
            if container in path and members.is_file():
                return [int(pid) for pid in members.read_text().split()]
    return None


def kill_pids(container: str, pids: Iterable[int]) -> None:
    """Send SIGKILL to processes of a container, by their pids on this host. Pids that are not in it are left alone."""
    for pid in pids:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if _is_in(container, pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _find_freezer(pid: int) -> Path:
    """Return the path of the file that freezes a process's control group; it does not exist with cgroup v2."""
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    group = next((path for _, controllers, path in lines if "freezer" in controllers.split(",")), "/")
    return Path("/sys/fs/cgroup/freezer", group.lstrip("/"), "freezer.state")


def _list_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _is_in(container: str, pid: int) -> bool:
    """Return whether a process is in a control group of a container, whose name has the container's full id.

    A process inside can't leave it: the container's view of the hierarchy is read-only.
    """
    return container in Path(f"/proc/{pid}/cgroup").read_text()
