"""What a sandbox may use, and which files of a control group say so, in either version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use at most; None is no limit. memory_mb: MiB, without swap. cpus: cores. pids: tasks."""

    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = 4096


Settings = dict[str, list[tuple[str, str]]]
"""By controller: files and what is written to them, in this order."""


def settings_v2(limits: Limits) -> Settings:
    wanted: Settings = {}
    if limits.memory_mb is not None:
        wanted["memory"] = [("memory.max", str(limits.memory_mb << 20)), ("memory.swap.max", "0")]
    # A group of its own also without a limit: then the scheduler gives a thousand busy processes of one sandbox no more
    # than it gives one of another, or of the engine.
    wanted["cpu"] = [("cpu.weight", "100")]
    if limits.cpus is not None:
        wanted["cpu"].append(("cpu.max", f"{_quota(limits.cpus)} {CPU_PERIOD_US}"))
    if limits.pids is not None:
        wanted["pids"] = [("pids.max", str(limits.pids))]
    return wanted


def settings_v1(limits: Limits) -> Settings:
    wanted: Settings = {}
    if limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        # Memory with swap may never be below memory alone, neither before nor after.
        swap = "memory.memsw.limit_in_bytes"
        wanted["memory"] = [(swap, "-1"), ("memory.limit_in_bytes", size), (swap, size)]
    wanted["cpu"] = [("cpu.shares", "1024")]
    if limits.cpus is not None:
        wanted["cpu"].append(("cpu.cfs_period_us", str(CPU_PERIOD_US)))
        wanted["cpu"].append(("cpu.cfs_quota_us", str(_quota(limits.cpus))))
    if limits.pids is not None:
        wanted["pids"] = [("pids.max", str(limits.pids))]
    return wanted


_OPTIONAL = {"memory.swap.max", "memory.memsw.limit_in_bytes"}
"""Only there on kernels that count swap."""

MEANING = {"memory": "memory", "cpu": "CPU", "pids": "process"}


def apply(directory: Path, files: list[tuple[str, str]]) -> str | None:
    """Write limits; what is wrong, if something is."""
    for name, value in files:
        file = directory / name
        if name in _OPTIONAL and not file.exists():
            continue
        try:
            file.write_text(value)
        except OSError as error:
            return f"{file}: {error.strerror}"
    return None


def _quota(cpus: float) -> int:
    """Microseconds of each period; the kernel takes no fewer than a thousand."""
    return max(int(cpus * CPU_PERIOD_US), 1000)
