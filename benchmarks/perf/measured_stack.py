"""An embedded stack of a measurement's own, and what its processes cost.

CPU time is the kernel's (`/proc/<pid>/stat`, ended children included), because wall time on a shared machine says
more about the neighbours than about the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchflow import stack
from benchflow.paths import StatePaths
from benchflow.planes.sandbox.local.machine import Machine

_TICKS = os.sysconf("SC_CLK_TCK")
_FOREIGN = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE")
"""Variables that would lead the measurement away from its own stack."""

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Set on some build machines; with it a source tree is compiled anew by every process, which no user sees."""

QUIET_SHARE = 0.1
"""Share of one core below which a stack has done its work."""

QUIET_PATIENCE_SEC = 5.0


@dataclass(frozen=True)
class MeasuredStack:
    """A running stack. root: scratch space that is removed with it."""

    root: Path
    paths: StatePaths

    def pids(self) -> dict[str, int]:
        """The processes of the stack by what they are."""
        record = stack.find_running(self.paths)
        if record is None or record.server is None or record.worker is None:
            raise RuntimeError(f"the stack is not running: see {self.paths.logs}")
        found = {"supervisor": record.supervisor.pid, "server": record.server.pid, "worker": record.worker.pid}
        return found if record.enclosure is None else found | {"enclosure": record.enclosure.pid}

    def cpu(self) -> dict[str, float]:
        """CPU seconds since the start, by process. A restarted process counts with the supervisor from then on."""
        return {name: cpu_of(pid) for name, pid in self.pids().items()}

    def rss_mb(self) -> dict[str, float]:
        return {name: rss_mb_of(pid) for name, pid in self.pids().items()}

    def database_mb(self) -> float:
        """The server's database with its write-ahead log."""
        return sum(file.stat().st_size for file in self.paths.root.glob("temporal.db*")) / 1e6

    def restarts(self) -> int:
        record = stack.read_record(self.paths)
        return sum(record.restarts.values()) if record else 0

    def wait_until_quiet(self) -> float:
        """Wait until what a job left to do is done. Returns the share of a core that is used even then."""
        deadline = time.monotonic() + QUIET_PATIENCE_SEC
        while True:
            before, since = sum(self.cpu().values()), time.monotonic()
            time.sleep(0.25)
            share = (sum(self.cpu().values()) - before) / (time.monotonic() - since)
            if share < QUIET_SHARE or time.monotonic() > deadline:
                return share


@contextlib.contextmanager
def measured_stack(environment: Mapping[str, str] | None = None) -> Iterator[MeasuredStack]:
    """Start a stack in a temporary directory, with a worker that asks for work; stop and remove it in the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Directly below the temporary directory: the state directory's path goes into names of limited length.
    root = Path(tempfile.mkdtemp(prefix="bf-perf-"))
    paths = StatePaths(root / "state")
    for name in (*_FOREIGN, _NO_BYTECODE):
        os.environ.pop(name, None)
    os.environ |= {"BENCHFLOW_STATE_DIR": str(paths.root), **(environment or {})}
    try:
        stack.ensure_stack(paths)
        made = MeasuredStack(root, paths)
        _wait_for_worker(made)
        yield made
    finally:
        stack.stop_stack(paths)
        if (paths.root / "local").is_dir():
            asyncio.run(_remove_local_sandboxes())
        shutil.rmtree(root, ignore_errors=True)


async def _remove_local_sandboxes() -> None:
    """Those that an interrupted measurement left, and the mounted store, which a worker that was killed leaves."""
    machine = Machine()
    for name, _ in machine.all():
        await machine.remove(name)
    await machine.sweep()
    machine.close()


def _wait_for_worker(made: MeasuredStack) -> None:
    deadline = time.monotonic() + stack.START_TIMEOUT_SEC
    while not any(paths.is_file() for paths in made.paths.running.glob("*/ready")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not get ready: see {made.paths.logs}")
        time.sleep(0.05)


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of those of its children that have ended and were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def rss_mb_of(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} is gone")
