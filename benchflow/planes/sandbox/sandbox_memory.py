"""Memory counters of a sandbox, from its control group (v1 or v2), and OOM kills counted from a given moment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxLostError, SandboxMemoryError
from benchflow.host_files import write_record

V2_FILES = ("memory.events", "memory.max", "memory.peak")
"""Files with kills, limit and peak in cgroup v2. `memory.peak` exists since Linux 5.19."""

V1_FILES = ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
"""The same in cgroup v1. `oom_kill` is in the first one since Linux 4.13."""

_UNLIMITED = 1 << 60
"""Number of bytes from which a limit counts as none: without one, cgroup v1 reports the largest number of pages that it
can count."""


def parse_memory(files: Mapping[str, str]) -> MemoryUse | None:
    """Return the counters from the files of a control group, given by name; None if kills are not counted."""
    for events, limit, peak in (V2_FILES, V1_FILES):
        # Not `oom`, which also counts events without a kill, nor `oom_group_kill`, whose kills are included here.
        counted = re.search(r"^oom_kill (\d+)$", files.get(events, ""), re.MULTILINE)
        if counted is not None:
            kills = int(counted.group(1))
            return MemoryUse(
                kills=kills, limit_mb=_parse_mebibytes(files.get(limit)), peak_mb=_parse_mebibytes(files.get(peak))
            )
    return None


def _parse_mebibytes(text: str | None) -> int | None:
    """Return a file's number of bytes in MiB. None for no file, and for no limit, which cgroup v2 reports as `max`."""
    text = (text or "").strip()
    return int(text) >> 20 if text.isdigit() and int(text) < _UNLIMITED else None


def make_memory_error(name: str, use: MemoryUse | None) -> SandboxLostError | None:
    """Return the error for a sandbox that has ended, if the kernel has killed processes in it; None otherwise.

    Args:
        name: Name of the sandbox.
        use: Its last counters; None if there are none.
    """
    if use is None or not use.kills:
        return None
    return SandboxMemoryError(
        f"the sandbox {name} no longer runs: {use.explanation(use.kills)}",
        key="memory_mb",
        remedy=use.remedy("memory_mb"),
    )


class _Started(Model):
    """The record of a `KillNote`."""

    kills: int
    """Number of kills when counting started."""


class KillNote:
    """The count of OOM kills from a moment on, which any process can read from a file."""

    def __init__(self, file: Path) -> None:
        """Make it, with the file in which the count at that moment is recorded."""
        self._file = file

    @property
    def has_started(self) -> bool:
        """Return whether counting has started."""
        return self._file.exists()

    async def start(self, sandbox: Sandbox) -> None:
        """Start counting. Call it before the watched process starts, so that none of its kills is missed.

        Without memory counters, nothing is recorded.
        """
        use = await sandbox.memory_use()
        if use is None:
            return
        write_record(self._file, _Started(kills=use.kills).model_dump())

    def count_kills(self, use: MemoryUse) -> int:
        """Return the number of kills since then, or since the sandbox's start if counting never started."""
        try:
            earlier = _Started.model_validate_json(self._file.read_bytes()).kills
        except FileNotFoundError:
            earlier = 0
        return use.kills_since(earlier)
