"""The processes of a sandbox, read and killed by this host through the kernel, without programs of the sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchflow.contracts.process_table import RunningProcess
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.timeouts import AwakeDeadline

END_TIMEOUT_SEC = 60.0
"""Timeout in seconds for killed processes to end: one that waits for the disk does that first."""

_POLL_SEC = 0.001
"""Poll interval in seconds."""

_EXITING = 0x4
"""The kernel's flag (PF_EXITING) of a process that is exiting."""


def read_process(pid: int, *, group: str = "", entered: bool = True) -> RunningProcess | None:
    """Return a process by its pid on this host; None if it has ended.

    Args:
        pid: Pid on this host.
        group: Value of `RunningProcess.group`.
        entered: Value of `RunningProcess.entered`.
    """
    place = Path("/proc") / str(pid)
    try:
        head, _, tail = (place / "stat").read_bytes().rpartition(b") ")
        fields = tail.split()
        parent = int(fields[1])
        argv = (place / "cmdline").read_bytes().replace(b"\0", b" ").rstrip(b" ")
        return RunningProcess(
            pid=pid,
            parent=parent,
            session=int(fields[3]),
            start=int(fields[19]),
            state=_find_state(fields),
            name=head.partition(b" (")[2],
            user="",
            marked=None,
            entered=entered,
            argv=argv,
            runs_same_file=_is_same_file(place / "exe", Path("/proc") / str(parent) / "exe"),
            group=group,
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def has_ended_first(pid: int) -> bool:
    """Return whether the first thread of a process has ended, or is exiting, while others run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return _has_ended(fields) and int(fields[17]) > 1


def _has_ended(fields: Sequence[bytes]) -> bool:
    """Return whether the first thread of a process has ended, or is exiting, from the fields of `stat`."""
    return fields[0] in b"ZX" or bool(int(fields[6]) & _EXITING)


def _find_state(fields: Sequence[bytes]) -> str:
    """Return the state letter of a process, from the fields of its `stat` after the name.

    A process that is exiting counts as ended (`Z`). One whose first thread has ended has not, as long as others run.
    """
    if not _has_ended(fields):
        return fields[0].decode()
    return "S" if int(fields[17]) > 1 else "Z"


def make_unseen_row(pid: int) -> RunningProcess:
    """Return the row of a process that had ended, or continued as another process, before it could be read."""
    return RunningProcess(
        pid=-pid, parent=0, session=0, start=0, state="?", name=b"", user="", marked=None, entered=True
    )


def kill_processes(processes: Iterable[RunningProcess]) -> None:
    """Send SIGKILL to processes, unless another one has the pid by now."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            try:
                found = read_process(process.pid)
                if found is not None and found.identity == process.identity:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def wait_for_ends(processes: Iterable[RunningProcess], timeout: float = END_TIMEOUT_SEC) -> None:
    """Wait until killed processes have ended.

    Args:
        processes: The processes.
        timeout: Seconds for all of them.

    Raises:
        SandboxError: One does not end.
    """
    deadline = AwakeDeadline(timeout)
    for process in processes:
        while (found := read_process(process.pid)) is not None and found.identity == process.identity:
            if found.state in "ZX":
                break
            if deadline.is_over():
                raise SandboxError(
                    f"a process of the sandbox does not end (pid {process.pid} of this host)",
                    remedy="run this rollout again in a fresh sandbox",
                )
            time.sleep(_POLL_SEC)


def _is_same_file(one: Path, other: Path) -> bool | None:
    """Return whether two paths are the same file; None if that can't be read."""
    try:
        return one.samefile(other)
    except OSError:
        # A process that has ended, or is exiting, has no executable any more.
        return None
