"""The limits of a sandbox, and the cgroup files that set them, in version 1 and in version 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000
"""Microseconds of the period in which the CPU quota counts."""


@dataclass(frozen=True)
class SandboxLimits:
    """Upper limits of a sandbox; None is no limit."""

    memory_mb: int | None = None
    """MiB of memory. Swap is forbidden."""
    cpus: float | None = None
    """Number of cores; may be a fraction."""
    pids: int | None = 4096
    """Number of processes and threads."""


Settings = dict[str, list[tuple[str, str]]]
"""File names and the values to write to them, in order, by controller."""


def make_settings_v2(limits: SandboxLimits) -> Settings:
    """Return the cgroup v2 settings that enforce `limits`."""
    wanted: Settings = {}
    if limits.memory_mb is not None:
        wanted["memory"] = [("memory.max", str(limits.memory_mb << 20)), ("memory.swap.max", "0")]
    # Each sandbox has a cpu cgroup even without a limit: then the scheduler gives a thousand busy processes of one
    # sandbox no more than a single process of another one, or of the engine.
    wanted["cpu"] = [("cpu.weight", "100")]
    if limits.cpus is not None:
        wanted["cpu"].append(("cpu.max", f"{_compute_quota(limits.cpus)} {CPU_PERIOD_US}"))
    if limits.pids is not None:
        wanted["pids"] = [("pids.max", str(limits.pids))]
    return wanted


def make_settings_v1(limits: SandboxLimits) -> Settings:
    """Return the cgroup v1 settings that enforce `limits`."""
    wanted: Settings = {}
    if limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        # The kernel refuses memory+swap below memory at every moment: raise the former, set memory, then lower it.
        swap = "memory.memsw.limit_in_bytes"
        wanted["memory"] = [(swap, "-1"), ("memory.limit_in_bytes", size), (swap, size)]
    wanted["cpu"] = [("cpu.shares", "1024")]
    if limits.cpus is not None:
        wanted["cpu"].append(("cpu.cfs_period_us", str(CPU_PERIOD_US)))
        wanted["cpu"].append(("cpu.cfs_quota_us", str(_compute_quota(limits.cpus))))
    if limits.pids is not None:
        wanted["pids"] = [("pids.max", str(limits.pids))]
    return wanted


_OPTIONAL = {"memory.swap.max", "memory.memsw.limit_in_bytes"}
"""Files that exist only if the kernel accounts swap."""

MEANING = {"memory": "memory", "cpu": "CPU", "pids": "process"}
"""The controllers that are used, and the name of each in warnings."""


def apply(directory: Path, files: list[tuple[str, str]]) -> str | None:
    """Write one controller's settings to a cgroup. A missing swap file is skipped.

    Args:
        directory: Directory of the cgroup.
        files: File names and values, in order.

    Returns:
        The first error, as text; None if all were written.
    """
    for name, value in files:
        file = directory / name
        if name in _OPTIONAL and not file.exists():
            continue
        try:
            file.write_text(value)
        except OSError as error:
            return f"{file}: {error.strerror}"
    return None


def _compute_quota(cpus: float) -> int:
    """Return the quota of a period in microseconds. The kernel refuses less than 1000."""
    return max(int(cpus * CPU_PERIOD_US), 1000)
